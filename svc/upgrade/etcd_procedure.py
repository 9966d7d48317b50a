"""Procedure `manifests-etcd`: a newer manifest is applied to a cluster whose datastore is etcd (specification, 9.5)."""

import re
from collections.abc import Iterator
from typing import Any, Final

from svc.admin.cluster_version import version_annotation
from svc.admin.resources import CLUSTER
from svc.deploy.manifests.settings import POLICY_ONLY
from svc.upgrade.cluster_state import ClusterState
from svc.upgrade.etcd_access import (
    Access,
    accesses,
    data_of,
    problems,
    secret_place,
    session,
    unreached,
    uses_etcd,
)
from svc.upgrade.etcd_steps import carried, step_of
from svc.upgrade.manifest_procedure import ManifestProcedure, configs_of, flavour_of, pattern_of
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.places import Place, place_of

Json = dict[str, Any]

NAME: Final = "manifests-etcd"


class EtcdProcedure(ManifestProcedure):
    """The procedure. The manifest says where etcd is; the files for TLS are those of the Secret in the cluster."""

    name = NAME
    datastore = "etcd"

    def unverified(self) -> list[str]:
        """Return what is not as it should be after the last step; nothing if the manifest is bad, which `findings` say."""
        (data, place), found = self._secret(), self._accesses()
        if not found or list(problems(found, place, data)):
            return []
        wrong = list(problems(accesses(self._live_configs()), place, data))
        return [*wrong, *([] if wrong else super().unverified())]

    def _step(self, document: Json, former: Former) -> ObjectStep:
        return step_of(self._writer, document, self._bundle, former)

    def _state(self) -> ClusterState:
        """Return what ClusterInformation in etcd says."""
        names, (data, _) = self._writer.names, self._secret()
        with session(self._endpoints(), data, names) as store:
            entry = store.find(CLUSTER)
        if entry is None:
            return ClusterState(is_served=True)
        spec, annotations = entry.value.spec, entry.value.metadata.get("annotations") or {}
        version, own = str(spec.get(names.version_field) or ""), str(annotations.get(version_annotation(names)) or "")
        return ClusterState(True, version, own, is_locked=spec.get("datastoreReady") is False)

    def _noted(self) -> dict[str, str]:
        """Return the revision of etcd, at which a snapshot shows the data as they were before the upgrade."""
        data, _ = self._secret()
        with session(self._endpoints(), data, self._writer.names) as store:
            return {"etcd revision": str(store.revision())}

    def _pattern(self) -> "re.Pattern[str]":
        return pattern_of(self._writer.names, self._to, plain=True)

    def _datastore_problems(self, live: Json, agent: Json) -> Iterator[str]:
        if not uses_etcd(live, [*configs_of(self._writer, live), *self._live_configs()]):
            yield "the datastore of the cluster is the Kubernetes API: this procedure is for etcd"
            return
        if not uses_etcd(agent, self._bundle.of_kind("ConfigMap")):
            yield "the datastore of the manifest is the Kubernetes API, and that of the cluster etcd: give the manifest for it"
            return
        if flavour_of(agent, self._writer.names) == POLICY_ONLY:
            yield f"flavour {POLICY_ONLY} is not for etcd: give the manifest of another flavour"
        (data, place), found = self._secret(), self._accesses()
        wrong = [*problems(found, place, data), *self._other_servers(found, live)]
        yield from wrong
        if not found:
            yield "the manifest does not say where etcd is: put etcd_endpoints into its ConfigMap"
        elif not wrong:
            yield from unreached(found[0].endpoints, data, self._writer.names)

    def _other_servers(self, found: list[Access], live: Json) -> Iterator[str]:
        """Yield a sentence for servers that the cluster does not use. Former manifests may have had other ConfigMaps."""
        now = _servers(accesses([*self._live_configs(), *configs_of(self._writer, live), live]))
        for each in found:
            if now and not now & _servers([each]):
                yield f"{each.where} names other servers of etcd than the cluster uses ({', '.join(sorted(now))})"

    def _accesses(self) -> list[Access]:
        return list(accesses(self._bundle.documents))

    def _endpoints(self) -> str:
        return self._accesses()[0].endpoints

    def _secret(self) -> tuple[dict[str, str], Place | None]:
        """Return the entries that the Secret will have, and its place."""
        agent = self._bundle.agent(self._writer.names)
        place = secret_place(agent) if agent is not None else None
        shipped = next((each for each in self._bundle.documents if place_of(each) == place), {})
        live = self._writer.find(place) if place is not None else None
        return data_of(carried(shipped, live)), place

    def _live_configs(self) -> list[Json]:
        """Return the ConfigMaps of the cluster that the manifest has."""
        places = map(place_of, self._bundle.of_kind("ConfigMap"))
        return [live for live in map(self._writer.find, places) if live is not None]


def _servers(found: "Iterator[Access] | list[Access]") -> set[str]:
    return {url.strip() for each in found for url in each.endpoints.split(",") if url.strip()}
