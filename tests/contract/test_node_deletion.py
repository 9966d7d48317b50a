"""The deletion of the Node of a deleted Kubernetes node, on a real API server and a real etcd."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from harness.datastores import EtcdSite, session, set_ready
from harness.ipam import put, put_pool
from harness.kube import Kube, Refused
from harness.orch import NODES, put_core_node
from harness.polling import wait_until
from harness.running_controller import Clock, Running, running
from svc.admin.block_release import delete_claim
from svc.controllers.controller import Shared
from svc.controllers.gone_nodes import QUIET_SECONDS
from svc.controllers.node.ipam_hosts import IpamHosts
from svc.controllers.node.node_deletion import NodeDeletion
from svc.datastore.api import Backend, Conflict, Create, Entry, StoreError, Update, Write
from svc.datastore.orch.client import Client
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.claim import Claimant, NodeClaim
from svc.model.endpoint import Workload, endpoint_key
from svc.model.errors import SvcError
from svc.model.keys import AffinityQuery, BlockQuery, LegacyHostKey, NodeClaimKey, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

KEY = ResourceKey("Node", "n1")
CLAIM = NodeClaim(Claimant("m", "b", "/s"))
AUTOMATIC = {f"{DEFAULT.label_prefix}/created-by": DEFAULT.controllers}


class Stopping:
    """A session that ends at a write, as a killed process does: before it, or after it was applied."""

    update = Backend.update

    def __init__(self, inner: Backend, last: int, *, applies: bool) -> None:
        self._inner = inner
        self._last = last
        self._applies = applies
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self.writes += 1
        if self.writes < self._last or (self.writes == self._last and self._applies):
            done = self._inner.write(writes, durable=durable)
            if self.writes < self._last:
                return done
        raise StoreError("the process was killed")


class Case:
    """A cluster of the nodes n1 and n2, and the part that deletes Nodes, with a clock that the test moves."""

    def __init__(self, kube: Kube, store: Backend, start: Callable[..., Running]) -> None:
        self.kube = kube
        self.store = store
        self.clock = Clock()
        self._start = start

    def run(self, store: Any = None, make: Callable[[Shared], NodeDeletion] = NodeDeletion) -> Running:
        part = self._start(make, store, self.clock)
        wait_until(lambda: part.part.is_ready)
        return part

    def add_node(self, name: str = "n1") -> None:
        put_core_node(self.kube, name)
        references = [{"orchestrator": DEFAULT.orchestrator, "nodeName": name}]
        put(self.store, ResourceKey("Node", name), Resource("Node", {"name": name}, {"orchRefs": references}))

    def lose_node(self, part: Running | None = None, name: str = "n1") -> None:
        self.kube.call("DELETE", f"{NODES}/{name}")
        if part is not None:
            wait_until(lambda: name not in part.shared.tables.kube_nodes.snapshot())

    def assign(self, handle: str, node: str = "n1", **attributes: str) -> str:
        owner = {"node": node, "pod": handle, "namespace": "default"} | attributes
        return str(IpamService(self.store, node).assign(Assign(handle, owner, max_blocks=0)).addresses[0])

    def release(self, handle: str) -> None:
        IpamService(self.store, "n1").release(Release(handle))

    def put_endpoint(self, pod: str, node: str = "n1") -> ResourceKey:
        key = endpoint_key(DEFAULT, node, Workload("c", pod, "default"), "eth0")
        metadata = {"name": key.name, "namespace": key.namespace}
        put(self.store, key, Resource(key.kind, metadata, {"node": node, "pod": pod}))
        return key

    def put_host_endpoint(self, name: str, node: str = "n1", **metadata: Any) -> ResourceKey:
        key = ResourceKey("HostEndpoint", name)
        put(self.store, key, Resource(key.kind, {"name": name, **metadata}, {"node": node, "interfaceName": "eth0"}))
        return key

    def fill(self) -> list[Any]:
        """Give n1 everything that goes with it. Return the keys."""
        self.assign("gone")
        self.release("gone")
        self.store.write([Create(NodeClaimKey("n1"), CLAIM)])
        return [self.put_endpoint("a"), self.put_endpoint("b"), self.put_host_endpoint("h"), NodeClaimKey("n1"), KEY]

    def settle(self, part: Running, after: float = 0.0) -> None:
        """Judge n1 after this time."""
        self.clock.now += after
        part.part.settle("n1")

    def settle_twice(self, part: Running) -> None:
        self.settle(part)
        self.settle(part, QUIET_SECONDS)

    def left(self) -> list[str]:
        """Return what the datastore has of n1."""
        kinds = ("Node", "WorkloadEndpoint", "HostEndpoint")
        found = [entry for kind in kinds for entry in self.store.list(ResourceQuery(kind))]
        names = [
            f"{each.value.kind} {each.value.name}" for each in found if "n1" in (each.value.name, each.value.spec.get("node"))
        ]
        affinities = self.store.list(AffinityQuery(kind="host", host="n1"))
        names += [f"affinity {entry.key}" for entry in affinities]
        names += [str(key) for key in (NodeClaimKey("n1"), LegacyHostKey("n1")) if self.store.find(key) is not None]
        return names


@pytest.fixture
def case(client: Client, kube: Kube, etcd_site: EtcdSite) -> Iterator[Case]:
    with session(etcd_site) as store, ExitStack() as stack:
        set_ready(store)
        put_pool(store, "pool4", "10.65.0.0/24", blockSize=28)

        def start(make: Any, wrapped: Any, clock: Clock) -> Running:
            own = wrapped or stack.enter_context(session(etcd_site))
            return stack.enter_context(running(client, own, make, clock=clock))

        made = Case(kube, store, start)
        made.add_node()
        made.add_node("n2")
        yield made
    kube.forget("minions/")
    etcd_site.clear()


def test_everything_of_the_node_goes_and_nothing_of_others(case: Case) -> None:
    case.fill()
    address = case.assign("other", "n2")
    kept = [case.put_endpoint("c", "n2"), case.put_host_endpoint("o", "n2"), ResourceKey("Node", "n2")]
    part = case.run()
    case.lose_node(part)
    case.settle_twice(part)
    assert case.left() == []
    assert all(case.store.find(key) is not None for key in kept)
    blocks = [entry.value for entry in case.store.list(BlockQuery())]
    assert [(block.affinity, block.ordinals.used) for block in blocks] == [("host:n2", 1)], address


def test_node_stays_until_its_claim_was_quiet(case: Case) -> None:
    case.fill()
    part = case.run()
    case.lose_node(part)
    case.settle(part)
    case.settle(part, QUIET_SECONDS - 1)
    assert case.store.find(KEY) is not None
    entry = case.store.get(NodeClaimKey("n1"))
    case.store.write([Update(entry.key, entry.value.renewed(), entry.revision)])
    case.settle(part, 2)
    assert case.store.find(KEY) is not None
    case.settle(part, QUIET_SECONDS)
    assert case.left() == []


def test_node_that_exists_stays(case: Case) -> None:
    case.fill()
    before = case.left()
    case.settle_twice(case.run())
    assert case.left() == before


def test_node_that_is_created_again_stays(case: Case) -> None:
    case.fill()
    before = case.left()
    part = case.run()
    case.lose_node(part)
    case.settle(part)
    put_core_node(case.kube, "n1")
    case.settle(part, QUIET_SECONDS)
    assert case.left() == before


def test_claim_that_another_part_has_deleted_does_not_delay_the_deletion(case: Case) -> None:
    case.fill()
    others: list[IpamHosts] = []

    def make(shared: Shared) -> NodeDeletion:
        others.append(IpamHosts(shared))
        return NodeDeletion(shared)

    part = case.run(make=make)
    case.lose_node(part)
    others[0].settle("n1")
    case.clock.now += QUIET_SECONDS
    others[0].settle("n1")
    assert case.store.find(NodeClaimKey("n1")) is None
    case.settle(part)
    assert case.left() == []


def test_agent_that_claims_its_name_after_the_judgement_keeps_everything(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.fill()
    before = case.left()

    def claim_first(backend: Backend, name: str, revision: str) -> None:
        entry = case.store.get(NodeClaimKey(name))
        case.store.write([Update(entry.key, entry.value.renewed(), entry.revision)])
        delete_claim(backend, name, revision)

    monkeypatch.setattr("svc.controllers.node.node_deletion.delete_claim", claim_first)
    part = case.run()
    case.lose_node(part)
    case.settle_twice(part)
    assert case.left() == before


def test_endpoint_that_is_written_after_the_deletion_of_the_claim_stays(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is created again, and a pod of the same name has an ADD there, while the process is paused."""
    key = case.put_endpoint("web-0")
    part = case.run()
    wait_until(lambda: key in part.shared.tables.endpoints.snapshot())

    def delete_and_pause(backend: Backend, name: str, revision: str) -> None:
        delete_claim(backend, name, revision)
        case.put_endpoint("web-0")

    monkeypatch.setattr("svc.controllers.node.node_deletion.delete_claim", delete_and_pause)
    case.lose_node(part)
    with suppress(Conflict):
        case.settle_twice(part)
    assert case.store.find(key) is not None


def test_node_of_no_kubernetes_stays(case: Case) -> None:
    put(case.store, ResourceKey("Node", "metal"), Resource("Node", {"name": "metal"}, {}))
    part = case.run()
    assert list(part.part.round_items()) == []
    case.clock.now += QUIET_SECONDS
    part.part.settle("metal")
    assert case.store.find(ResourceKey("Node", "metal")) is not None


@pytest.mark.parametrize("attributes", [{}, {"type": "ipipTunnelAddress"}])
def test_node_stays_while_addresses_are_held(attributes: dict[str, str], case: Case) -> None:
    """Another part releases them, after its own checks."""
    case.fill()
    case.assign("held", **attributes)
    before = case.left()
    part = case.run()
    case.lose_node(part)
    case.settle_twice(part)
    assert case.left() == before
    case.release("held")
    wait_until(lambda: not part.part._has_addresses("n1"))  # type: ignore[attr-defined]
    case.settle(part)
    assert case.left() == []


def test_address_that_the_table_does_not_show_yet_keeps_the_node(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.assign("held")
    part = case.run()
    monkeypatch.setattr(part.shared.tables.blocks, "snapshot", dict)
    case.lose_node(part)
    case.settle_twice(part)
    assert case.store.find(KEY) is not None


def test_address_that_another_node_borrowed_is_kept(case: Case) -> None:
    """The block stays without an affinity."""
    case.assign("first")
    address = case.assign("moved")  # in the block of n1
    entry = next(iter(case.store.list(BlockQuery())))
    for attribute in entry.value.attributes or ():
        if attribute.handle_id == "moved":
            attribute.secondary = {"node": "n2", "pod": "moved", "namespace": "default"}
    case.store.write([Update(entry.key, entry.value, entry.revision)])
    case.release("first")
    part = case.run()
    case.lose_node(part)
    wait_until(lambda: not part.part._has_addresses("n1"))  # type: ignore[attr-defined]
    case.settle_twice(part)
    assert case.left() == []
    block = case.store.get(entry.key).value
    assert (block.affinity, block.ordinals.used) == (None, 1), address


def test_automatic_host_endpoints_follow_the_node(case: Case) -> None:
    """Otherwise their own part would create them again as long as the Node exists."""
    key = case.put_host_endpoint("n1-auto-hep", labels=AUTOMATIC)
    part = case.run()
    case.lose_node(part)
    case.settle_twice(part)
    assert case.store.find(KEY) is None
    assert case.store.find(key) is not None


def test_deletion_begins_when_kubernetes_deletes_the_node(case: Case) -> None:
    part = case.run()
    case.lose_node()
    wait_until(lambda: "n1" in part.part._gone._seen)  # type: ignore[attr-defined]
    case.clock.now += QUIET_SECONDS
    part.part.begin_round()
    wait_until(lambda: case.store.find(KEY) is None)


def test_nothing_is_deleted_while_the_datastore_is_locked(case: Case) -> None:
    case.fill()
    before = case.left()
    part = case.run()
    set_ready(case.store, ready=False)
    case.lose_node(part)
    with suppress(StoreError):
        case.settle_twice(part)
    assert case.left() == before


def test_node_that_changes_during_the_deletion_stays(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    part = case.run()
    deletion = part.part
    assert isinstance(deletion, NodeDeletion)
    case.lose_node(part)
    case.settle(part)

    def change(_name: str) -> bool:
        case.store.update(KEY, lambda node: Resource("Node", {"name": "n1"}, {"bgp": {}} | (node.spec if node else {})))
        return False

    monkeypatch.setattr(deletion, "_is_back", change)
    with pytest.raises(StoreError, match="was changed"):
        case.settle(part, QUIET_SECONDS)
    assert case.store.find(KEY) is not None


@pytest.mark.parametrize("returns", ["agent", "node"])
def test_node_that_is_back_at_the_end_stays(returns: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(_store: Any, name: str, _affinities: Any) -> None:
        if returns == "agent":
            case.store.write([Create(NodeClaimKey(name), CLAIM)])
        else:
            put_core_node(case.kube, name)

    monkeypatch.setattr("svc.controllers.node.node_deletion.remove_host", remove)
    part = case.run()
    case.lose_node(part)
    case.settle_twice(part)
    assert case.store.find(KEY) is not None


@pytest.mark.parametrize("applies", [False, True], ids=["before", "after"])
def test_killed_process_is_completed_by_the_next_one(applies: bool, case: Case, etcd_site: EtcdSite) -> None:
    """The Node is the last thing that goes. So the next process finds it as long as anything else is left."""
    last, killed = 0, True
    while killed:
        last += 1
        case.fill()
        with session(etcd_site) as own:
            part = case.run(stopping := Stopping(own, last, applies=applies))
            with suppress(Refused):
                case.lose_node(part)
            with suppress(SvcError):
                case.settle_twice(part)
            killed = stopping.writes >= last
            part.stop()
        assert case.left() == [] or case.store.find(KEY) is not None, f"the Node went before the rest, at write {last}"
        case.settle_twice(case.run())
        assert case.left() == []
        case.add_node()
    assert last > 5
