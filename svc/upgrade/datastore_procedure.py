"""Procedure `datastore`: the content of etcd moves to the Kubernetes API, or back, and the nodes follow."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin.ipam_check.check import check
from svc.admin.ipam_check.findings import Finding
from svc.admin.ipam_check.observation import Place
from svc.ipam.service import IpamService
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.move import marks
from svc.upgrade import datastore_steps as parts
from svc.upgrade.bundle import Bundle, agent_names
from svc.upgrade.client_versions import listed
from svc.upgrade.datastore_nodes import Nodes
from svc.upgrade.datastore_sites import Ends, Sites
from svc.upgrade.network_mark import FormerNetwork, NetworkMark, UnawaitedAgent, namespaces_of_lists
from svc.upgrade.node_checks import check_nodes
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer

Json = dict[str, Any]

NAME: Final = "datastore"
MAX_SAMPLES: Final = 20  # pods that are looked at in the end
MAX_FINDINGS: Final = 10
_SOURCE, _TARGET = "source", "target"
_PARTS: Final = (
    parts.LockSource, parts.CallsInFlight, parts.AdmitTarget, parts.ImportDocuments, parts.MoveEndpoints, parts.Compare,
    parts.EnablePools, parts.SwitchOver,
)  # fmt: skip


class DatastoreProcedure:
    """The procedure. `documents` are those of a manifest that brings the new configuration to the nodes, if any."""

    name = NAME

    def __init__(self, writer: Writer, ends: Ends, documents: Sequence[Json] = (), digest: str = "") -> None:
        self._writer = writer
        self._sites = Sites(writer, ends)
        self._bundle = Bundle(documents)
        self._nodes: Nodes | None = None  # of the steps that were returned last
        source, target = ends.name_of(ends.source), ends.name_of(ends.target)
        self.inputs = {"procedure": NAME, _SOURCE: source, _TARGET: target, "manifest": digest}

    def steps(self, former: Former) -> list[Step]:
        """Return the steps of the move, of the manifest, and of the nodes."""
        objects: list[Step] = [self._kind_of(each)(self._writer, each, self._bundle, former) for each in self._bundle.documents]
        if namespaces_of_lists(self._bundle):
            objects = [FormerNetwork(self._sites), *objects, NetworkMark(self._sites, self._bundle)]
        self._nodes = Nodes(self._sites)
        return [*(part(self._sites) for part in _PARTS), *objects, self._nodes]

    def _kind_of(self, document: Json) -> type[ObjectStep]:
        is_agent = document["kind"] == "DaemonSet" and document["metadata"]["name"] in agent_names(self._writer.names)
        return UnawaitedAgent if is_agent else ObjectStep

    def findings(self) -> Findings:
        """Return the datastores. Raise StoreError if one of them does not answer."""
        source, target = self._sites.source, self._sites.target
        found: Json = {_SOURCE: source.backend.place, _TARGET: target.backend.place}
        found["programs on PATH"] = listed(os.environ.get("PATH", ""))
        missing = (marks.not_initialised(source).msg,) if marks.present(source) is None else ()
        return Findings(NAME, found, missing, self.inputs[_SOURCE], self.inputs[_TARGET])

    def unverified(self) -> list[str]:
        """Return what the check finds in the target and not in the source."""
        if not self._sites.has_arrived or not (found := _findings(self._sites.target)):
            return []
        known = _findings(self._sites.source)
        new = [f"{key}: {text}" for key, text in found.items() if key not in known]
        return [*new[:MAX_FINDINGS], *([f"and {len(new) - MAX_FINDINGS} more findings"] if len(new) > MAX_FINDINGS else [])]

    def prove(self, pause: Callable[[float], None]) -> list[str]:
        """Return the sample pods whose addresses the target does not have, else what agents of sample nodes find."""
        unheld = list(islice(_unheld(self._sites.source, self._sites.target), MAX_FINDINGS))
        left_out = self._nodes.unmoved if self._nodes is not None else frozenset[str]()
        return unheld or check_nodes(self._writer, pause, self._known(), left_out)

    def _known(self) -> set[str]:
        """Return the addresses about which the check finds something in both datastores: the user has consented to that.

        Pods that were added since the move are not in the source."""
        return _addresses(self._sites.source) & _addresses(self._sites.target)


def is_reverse(run: Mapping[str, str], inputs: Mapping[str, str]) -> bool:
    """Return whether inputs are those of the move back from a run's target to its source."""
    ends = (inputs.get(_SOURCE), inputs.get(_TARGET))
    return inputs.get("procedure") == run.get("procedure") == NAME and ends == (run.get(_TARGET), run.get(_SOURCE))


def special_steps(writer: Writer) -> Mapping[str, Step]:
    """Return the steps that are not about an object of a manifest, by name. Their backup says where the datastores are."""
    sites = Sites(writer)
    return {part.name: part(sites) for part in (*_PARTS, FormerNetwork, NetworkMark, Nodes)}


def _findings(place: Place) -> dict[str, str]:
    return {f"{each.id}: {each.object}": each.problem for each in _checked(place)}


def _addresses(place: Place) -> set[str]:
    return {address for each in _checked(place) for address in each.addresses}


def _checked(place: Place) -> Sequence[Finding]:
    return check(place, lambda _seconds, _counts: False).findings


def _unheld(source: Place, target: Place) -> Iterator[str]:
    """Yield the sample endpoints one of whose addresses of the pools is not allocated to their container, unless it was so."""
    before, ipam = IpamService(source.backend, ""), IpamService(target.backend, "")
    for entry in islice(target.backend.list(ResourceQuery(ENDPOINT)), MAX_SAMPLES):
        endpoint: Resource = entry.value
        container = str(endpoint.spec.get("containerID") or "")
        for text in endpoint.spec.get("ipNetworks") or () if container else ():
            pool, handle = ipam.pool_and_handle(Cidr(text).first)
            is_held = not pool or handle.endswith(f".{container}")
            if not is_held and before.pool_and_handle(Cidr(text).first)[1] != handle:
                yield f"endpoint {endpoint.name}: {text} is allocated to {handle or 'no handle'}, not to its container"
