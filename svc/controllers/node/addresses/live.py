"""Reads of the present state of a pod and of its node, just before its addresses are released."""

from collections.abc import Mapping, Sequence

from svc.controllers.live_reads import find_pod
from svc.controllers.node.addresses.held import Held, is_own
from svc.controllers.node.addresses.judgement import LEAKED, Facts, judge
from svc.controllers.nodes import read_kube_name, read_kube_node
from svc.controllers.pods import PodRow, read_pod
from svc.controllers.stored_endpoints import EndpointRow, read_endpoint
from svc.datastore.api import Backend, Delete, Entry
from svc.datastore.orch.client import Client
from svc.model.endpoint import KIND, Workload, endpoint_key
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A handle whose addresses are all leaked by what was read now, and the endpoints that end with it."""

    handle: str
    held: Sequence[Held]
    reason: str
    deletions: Sequence[Delete] = ()


class LiveCheck:
    """Judges handles by live reads. `stores_endpoints` is whether the datastore has endpoints of its own.

    It reads each node once. So create one for each group of releases.
    """

    def __init__(self, client: Client, store: Backend, names: Names, *, stores_endpoints: bool) -> None:
        self._client = client
        self._store = store
        self._names = names
        self._stores_endpoints = stores_endpoints
        self._read_nodes: dict[str, tuple[str, bool]] = {}  # the name of a node in Kubernetes, and whether it exists there

    def confirm(self, held: Sequence[Held], facts: Facts, siblings: Mapping[str, Sequence[Held]]) -> Confirmed | str:
        """Judge the addresses of one handle. Return why it is kept if one of them is not leaked. Raise SvcError.

        The caller has seen the allocations before. So the pod that is read now is theirs, or a later one of its name.
        """
        first = held[0]
        if any((each.pod, each.node) != (first.pod, first.node) for each in held):
            return "its addresses have several owners"
        if self._node(first.node) != (facts.kube_name(first.node), not facts.has_lost(first.node)):
            return "its node was created, deleted or changed since"
        uid, row = self._pod(first.pod)
        known = facts.pods.get(first.pod)
        if row is not None and (known is None or known.uid != uid):
            return "its pod was created again since"
        entries = self._endpoints(first)
        if entries is None:
            return "an endpoint of its pod cannot be read"
        rows = [read_endpoint(self._names, entry) for entry in entries]
        verdicts = [judge(each, facts, row, rows, siblings.get(each.pod, ())) for each in held]
        for each, verdict in zip(held, verdicts, strict=True):
            if verdict.state != LEAKED:
                return f"{each.address}: {verdict.reason or 'its pod may have it'}"
        return self._with_endpoints(held, verdicts[0].reason, entries, rows)

    def _with_endpoints(
        self, held: Sequence[Held], reason: str, entries: Sequence[Entry[Resource]], rows: Sequence[EndpointRow]
    ) -> Confirmed | str:
        """Return the handle with its own endpoints. Another program must not find an endpoint with a free address.

        The endpoints of the container in other networks have none of the addresses. They end with the handles of these.
        """
        addresses = {each.address for each in held}
        own = [(entry, set(row.addresses)) for entry, row in zip(entries, rows, strict=True) if is_own(held[0], row)]
        ending = [(entry, shown) for entry, shown in own if not shown or shown & addresses]
        if any(shown - addresses for _, shown in ending):
            return "its endpoint has further addresses"
        return Confirmed(held[0].handle, held, reason, tuple(Delete(entry.key, entry.revision) for entry, _ in ending))

    def _node(self, node: str) -> tuple[str, bool]:
        """Return the name of a node in Kubernetes, and whether it exists there."""
        if node not in self._read_nodes:
            name = read_kube_name(self._names, self._store, node)
            self._read_nodes[node] = name, bool(name) and read_kube_node(self._client, name) is not None
        return self._read_nodes[node]

    def _pod(self, pod: str) -> tuple[str, PodRow | None]:
        """Return UID and row of a pod as it is now; no row if it does not exist, or can have no address."""
        namespace, _, name = pod.partition("/")
        found = find_pod(self._client, namespace, name)
        if found is None:
            return "", None
        return str(found["metadata"]["uid"]), read_pod(self._names, found)[1]

    def _endpoints(self, held: Held) -> Sequence[Entry[Resource]] | None:
        """Return the stored endpoints of a pod on the node of an allocation; None if one cannot be decoded."""
        if not self._stores_endpoints:
            return ()
        namespace, _, name = held.pod.partition("/")
        prefix = endpoint_key(self._names, held.node, Workload("", name, namespace), "x").name[:-1]
        entries = self._store.list(ResourceQuery(KIND, namespace, prefix))
        return None if entries.skipped else entries
