"""Blocks and claims of nodes that are gone go, and those of nodes that live, return or keep an address stay."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from harness.driven_part import Driven, World, driven
from harness.ipam import holdings
from harness.running_controller import Clock
from svc._core.cidr import Cidr
from svc.admin.block_release import delete_claim
from svc.attach.datastore_ready import DatastoreLocked
from svc.controllers.controller import Shared
from svc.controllers.gone_nodes import QUIET_SECONDS
from svc.controllers.node.ipam_hosts import IpamHosts
from svc.datastore.api import Backend, Write
from svc.model.keys import NODE, AffinityQuery, BlockKey, BlockQuery

pytestmark = pytest.mark.server

HOST = "node2"
BLOCK = Cidr("10.66.0.128/26")  # the one that this host claims first


def hosts(shared: Shared, _clock: Clock) -> IpamHosts:
    return IpamHosts(shared)


@pytest.fixture
def part(world: World) -> Iterator[Driven]:
    with driven(world.client, world.store, hosts) as made:
        yield made


@pytest.fixture
def host(world: World) -> str:
    """Return a node with a claim and a block without addresses."""
    world.add_node(HOST)
    world.claim(HOST)
    world.set_cooldown(0)
    world.take(HOST, "net.a")
    world.free(HOST, "net.a")
    assert blocks(world) == [BLOCK]
    return HOST


def blocks(world: World) -> list[Cidr]:
    return [entry.value.cidr for entry in world.store.list(BlockQuery())]


def affinities(world: World) -> list[str]:
    return [entry.key.host for entry in world.store.list(AffinityQuery(kind=NODE))]  # type: ignore[attr-defined]


def remove(world: World, part: Driven, host: str) -> None:
    """Delete the node of Kubernetes, and let the time pass in which its claim must not move."""
    world.delete_node(host)
    part.round()
    part.round(QUIET_SECONDS)


def test_gone_node_loses_its_blocks_and_its_claim(world: World, part: Driven, host: str) -> None:
    remove(world, part, host)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([], [], False)
    assert part.round() == ([host] if world.has_etcd else [])  # its Node stays for the part that deletes Nodes


def test_node_of_kubernetes_stays(world: World, part: Driven, host: str) -> None:
    assert [part.round(), part.round(QUIET_SECONDS)] == [[], []]
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([BLOCK], [host], True)


def test_host_without_node_and_claim_loses_its_blocks(world: World, part: Driven) -> None:
    """Its Node was deleted before its blocks, for example by a killed process."""
    world.set_cooldown(0)
    world.add_node(HOST)
    world.take(HOST, "net.a")
    world.free(HOST, "net.a")
    remove(world, part, HOST)
    assert (blocks(world), affinities(world)) == ([], [])


def test_claim_that_moves_keeps_the_node(world: World, part: Driven, host: str) -> None:
    """The agent of the node lives. Kubernetes may have lost the node, or the API server was restored."""
    world.delete_node(host)
    part.round()
    part.round(QUIET_SECONDS - 1)
    world.claim(host)
    part.round(1)
    part.round(QUIET_SECONDS - 1)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([BLOCK], [host], True)
    part.round(1)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([], [], False)


def test_node_that_returns_keeps_everything(world: World, part: Driven, host: str) -> None:
    world.delete_node(host)
    part.round()
    part.round(QUIET_SECONDS - 1)
    world.add_core_node(host)
    part.round(1)
    world.delete_node(host)
    part.round()
    part.round(QUIET_SECONDS - 1)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([BLOCK], [host], True)


def test_node_that_returns_between_two_rounds_keeps_everything(world: World, part: Driven, host: str) -> None:
    world.delete_node(host)
    part.round()
    world.add_core_node(host)
    part.await_tables()
    world.delete_node(host)
    part.round(QUIET_SECONDS)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([BLOCK], [host], True)


@pytest.mark.parametrize("owner", [{"namespace": "default", "pod": "web"}, {}, {"type": "vxlanTunnelAddress"}])
def test_node_with_an_address_keeps_everything(world: World, part: Driven, host: str, owner: dict[str, str]) -> None:
    """Another part judges the addresses of pods and tunnels. Those of bare containers are for an administrator."""
    world.take(host, "net.a", **owner)
    remove(world, part, host)
    assert (affinities(world), world.is_claimed(host), set(holdings(world.store))) == ([host], True, {"net.a"})
    world.free(host, "net.a")
    part.round()
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([], [], False)


def test_block_with_an_address_of_another_node_stays_without_an_affinity(world: World, part: Driven, host: str) -> None:
    world.take("node1", "net.a", at="10.66.0.130")
    remove(world, part, host)
    assert affinities(world) == []
    assert world.store.get(BlockKey(BLOCK)).value.affinity is None
    assert set(holdings(world.store)) == {"net.a"}


def test_locked_datastore_is_not_changed(world: World, part: Driven, host: str) -> None:
    world.delete_node(host)
    part.round()
    world.lock()
    with pytest.raises(DatastoreLocked):
        part.round(QUIET_SECONDS)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([BLOCK], [host], True)
    world.unlock()
    part.round()
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([], [], False)


def test_agent_that_claims_its_name_between_judgement_and_release_keeps_everything(
    world: World, part: Driven, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    def claim_first(backend: Backend, name: str, revision: str) -> None:
        world.claim(name)
        delete_claim(backend, name, revision)

    monkeypatch.setattr("svc.controllers.node.ipam_hosts.delete_claim", claim_first)
    remove(world, part, host)
    assert (blocks(world), affinities(world), world.is_claimed(host)) == ([BLOCK], [host], True)


def test_process_that_is_killed_between_writes_leaves_what_the_next_one_completes(world: World, host: str) -> None:
    writes = _removal_until(world, host, None)
    assert writes >= 3
    for number in range(writes):
        world.add_core_node(host)
        world.claim(host)
        world.take(host, "net.a")
        world.free(host, "net.a")
        _removal_until(world, host, number)
        with driven(world.client, world.store, hosts) as other:
            other.round()
            other.round(QUIET_SECONDS)
        assert (blocks(world), affinities(world), world.is_claimed(host)) == ([], [], False), f"killed before write {number}"


class _Killed(BaseException):
    """The end of a process, which no handler of errors sees."""


def _removal_until(world: World, host: str, number: int | None) -> int:
    """Remove the host in a part that is killed before this write. Return how many writes it began."""
    begun = 0
    with driven(world.client, world.store, hosts) as made:
        write = made.shared.store.write

        def counted(writes: list[Write], *, durable: bool = False) -> object:
            nonlocal begun
            if begun == number:
                raise _Killed
            begun += 1
            return write(writes, durable=durable)

        made.shared.store.write = counted  # type: ignore[method-assign, assignment]
        with suppress(_Killed):
            remove(world, made, host)
    return begun
