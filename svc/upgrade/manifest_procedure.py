"""Procedure `manifests`: a newer manifest is applied to a cluster whose datastore is the Kubernetes API."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from svc import __version__
from svc.admin.version_order import order_of
from svc.deploy.manifests.settings import CONFIG_MAP, NETWORKING, OVERLAY, POLICY_ONLY
from svc.names import Names
from svc.orch.pod_cidrs import VARIABLE as USE_POD_CIDR
from svc.upgrade.agent_pods import OWN_VERSION
from svc.upgrade.bundle import Bundle, agent_names, container_of, version_of
from svc.upgrade.canary import try_pod
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import ClusterState, read_state
from svc.upgrade.etcd_access import uses_etcd, variables_of
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.places import Place, place_of
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Step
from svc.upgrade.writer import Cluster, Writer, not_served

Json = dict[str, Any]

NAME: Final = "manifests"
_CLUSTER_TYPE: Final = "CLUSTER_TYPE"
_PATCH_END, _PLAIN_END = r"\.", r"(\.|$)"


class ManifestProcedure:
    """The procedure. `given` are the digest of the manifest, and all else that a run is continued with.

    `last` are steps after those of the documents, `to` is the version that the user gives, if any. `published` is the former
    manifest as it was published, if the user gives it."""

    name = NAME
    datastore = "Kubernetes API"

    def __init__(
        self,
        writer: Writer,
        documents: Sequence[Json],
        given: dict[str, str],
        to: str = "",
        last: Sequence[Step] = (),
        published: Sequence[Json] = (),
    ) -> None:
        self._writer = writer
        self._bundle = Bundle(documents, published)
        self._to = to
        self._last = last
        self.inputs = given | {"to": to}

    def steps(self, former: Former) -> list[Step]:
        """Return a step for each document, and then the last ones."""
        return [*(self._step(each, former) for each in self._bundle.documents), *self._last]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the upgrade. Raise StoreError."""
        names, agent = self._writer.names, self._bundle.agent(self._writer.names)
        if agent is None:
            known = ", ".join(agent_names(names))
            return Findings(self.name, {}, (f"the manifest has no DaemonSet of the agent ({known})",))
        live, blockers = live_agent(self._writer, agent)
        problems = [*blockers, *self._kinds_missing(), *self._method_problems()]
        if live is not None:
            problems += [*_flavour_problems(live, agent, names), *self._datastore_problems(live, agent)]
        noted = {} if problems else self._noted()
        state = ClusterState(is_served=False) if problems else self._state()
        source = state.version or (version_of(container_of(live)["image"]) if live else "")
        target = version_of(container_of(agent)["image"])
        found: Json = {
            "datastore": self.datastore,
            "method": self.name,
            "flavour": flavour_of(live, names) if live else "none",
            "version": source,
            "programs on PATH": listed(_path()),
        }
        problems += [*lock_problems(state), *target_problems(self._pattern(), target), *version_problems(names, source, target)]
        return Findings(self.name, found, tuple(problems), source, target, noted)

    def unverified(self) -> list[str]:
        """Return what is not as it should be after the last step. Objects and rollouts are verified by their steps."""
        wanted, state = self._pattern(), self._state()
        found = []
        if state.is_served and not wanted.match(state.version):
            found.append(f"ClusterInformation default has version {state.version!r}, which does not match {wanted.pattern}")
        return [*found, *self._other_versions()]

    def prove(self, pause: Callable[[float], None]) -> list[str]:
        """Start a pod on a node of the agent, and delete it."""
        agent = self._bundle.agent(self._writer.names)
        return [] if agent is None else try_pod(self._writer, agent, pause)

    def _step(self, document: Json, former: Former) -> ObjectStep:
        return ObjectStep(self._writer, document, self._bundle, former)

    def _other_versions(self) -> Iterator[str]:
        """Yield a sentence if an edit that is carried over keeps the agent at another version than that of the manifest."""
        agent = self._bundle.agent(self._writer.names)
        live = self._writer.find(place_of(agent)) if agent is not None else None
        if agent is None or live is None:
            return
        wanted, found = (version_of(container_of(each)["image"]) for each in (agent, live))
        if found != wanted:
            yield f"{place_of(agent)} is of version {found!r}, and the manifest of {wanted!r}; if an edit keeps it, remove that"

    def _state(self) -> ClusterState:
        """Return what the cluster says of itself."""
        return read_state(self._writer)

    def _noted(self) -> dict[str, str]:
        """Return what the record of the run keeps."""
        return {}

    def _pattern(self) -> "re.Pattern[str]":
        """Return the form of the version of the cluster after the upgrade."""
        return pattern_of(self._writer.names, self._to)

    def _method_problems(self) -> Iterator[str]:
        """Yield why the manifest is that of another method of installation."""
        if self._bundle.brings(Place(self._writer.names.operator_api_version, "Installation", "", "default")):
            yield "the manifest is of flavour operator, and no operator has installed the cluster: give one of another flavour"

    def _datastore_problems(self, live: Json, agent: Json) -> Iterator[str]:
        """Yield why this procedure is not for the datastore."""
        if uses_etcd(live, configs_of(self._writer, live)):
            yield "the datastore of the cluster is etcd: this procedure is for the Kubernetes API"
        elif uses_etcd(agent, self._bundle.of_kind("ConfigMap")):
            yield "the datastore of the manifest is etcd, and that of the cluster the Kubernetes API: give the manifest for it"

    def _kinds_missing(self) -> Iterator[str]:
        """Yield a sentence for each document whose kind neither the server nor the manifest has."""
        for place in map(place_of, self._bundle.documents):
            if self._writer.served(place) is None and not self._bundle.brings(place):
                yield not_served(place)


def flavour_of(agent: Json, names: Names) -> str:
    """Return the flavour of a DaemonSet of the agent."""
    variables = variables_of(agent)
    if variables.get(USE_POD_CIDR) != "true":
        return NETWORKING
    is_overlay = agent["metadata"]["name"] == names.overlay_agent != names.node_agent
    return OVERLAY if is_overlay or OVERLAY in variables.get(_CLUSTER_TYPE, "").split(",") else POLICY_ONLY


def pattern_of(names: Names, to: str, *, plain: bool = False) -> "re.Pattern[str]":
    """Return the form of the version of the cluster after the upgrade: any patch release of the wanted one.

    With `plain`, the version may also stand without the number of a patch release."""
    wanted = to or (__version__ if names.upgrade_target == OWN_VERSION else names.upgrade_target)
    numbers = wanted.removeprefix("v").split(".")[:2]
    return re.compile(rf"^v?{re.escape('.'.join(numbers))}{_PLAIN_END if plain else _PATCH_END}")


def live_agent(cluster: Cluster, agent: Json) -> tuple[Json | None, list[str]]:
    """Return the DaemonSet of the agent in the cluster, and the reason if it is missing."""
    namespace, version = str(agent["metadata"].get("namespace") or ""), agent["apiVersion"]
    known = dict.fromkeys((agent["metadata"]["name"], *agent_names(cluster.names)))
    for name in known:
        if found := cluster.find(Place(version, "DaemonSet", namespace, name)):
            return found, []
    listed = ", ".join(known)
    return None, [f"no DaemonSet of the agent ({listed}) is in namespace {namespace}: svc was not installed by a manifest"]


def _flavour_problems(live: Json, agent: Json, names: Names) -> Iterator[str]:
    before, after = (each["metadata"]["name"] for each in (live, agent))
    if before != after:
        yield f"the cluster has DaemonSet {before}, and the manifest {after}: it is of another flavour"
        return
    was, wanted = flavour_of(live, names), flavour_of(agent, names)
    if was != wanted:
        yield f"the cluster has flavour {was}, and the manifest is of flavour {wanted}: give the manifest of {was}"


def configs_of(cluster: Cluster, live: Json) -> list[Json]:
    """Return the ConfigMaps with the network list of a cluster."""
    found = cluster.find(Place("v1", "ConfigMap", live["metadata"]["namespace"], CONFIG_MAP))
    return [] if found is None else [found]


def lock_problems(state: ClusterState) -> Iterator[str]:
    """Yield why a datastore forbids a run: new pods get no addresses."""
    if state.is_locked:
        yield "the datastore is locked, as for a migration; if none is at work, unlock it: `svcctl clusterinfo unlock`"


def target_problems(wanted: "re.Pattern[str]", target: str) -> Iterator[str]:
    """Yield why the version of a manifest is not the wanted one."""
    if order_of(target) is None:
        yield f"the manifest does not tell its version: its image has the tag {target!r}"
    elif not wanted.match(f"{target}."):
        yield f"the manifest is of version {target}, which does not match {wanted.pattern}: give its version with --to"


def version_problems(
    names: Names, source: str, target: str, what: str = "the manifest", *, reached: bool = False
) -> Iterator[str]:
    """Yield why an upgrade from one version to another is refused. `what` has the target.

    With `reached`, the source counts as a patch release of the target, and is not newer."""
    before, after, floor = order_of(source), order_of(target), order_of(names.upgrade_floor)
    if before is None:
        yield f"the version of the cluster is not known: it says {source!r}"
        return
    if floor is not None and before < floor:
        yield f"the cluster has version {source}, and upgrades begin at {names.upgrade_floor}"
    if after is not None and after < before and not reached:
        yield f"{what} is of version {target}, older than {source} of the cluster"


def _path() -> str:
    return os.environ.get("PATH", "")
