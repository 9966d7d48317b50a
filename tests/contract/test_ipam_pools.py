"""Which pools and addresses are used: selectors, uses, states and reservations."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.backend_wrappers import Through
from harness.ipam import NODE, block_of, blocks, free, holdings, put, put_node, put_pool, put_reservation, take
from svc._core.cidr import Address
from svc.datastore.api import Backend
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.model.keys import ResourceKey
from svc.model.resource import Resource

TINY = "10.65.0.0/29"


@pytest.fixture
def ipam(backend: Backend) -> IpamService:
    put_node(backend, zone="a")
    return IpamService(backend, NODE)


def pool_of(address: str) -> str:
    return address.rsplit(".", 2)[0]


# selection


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [({}, "10.3"), ({"team": "red"}, "10.1"), ({"team": "blue"}, "10.2"), ({"team": "green"}, "10.3")],
)
def test_namespace_selectors_are_matched(backend: Backend, ipam: IpamService, namespace: dict[str, str], expected: str) -> None:
    """They match the labels of the namespace. Pools are used in name order. A pod without a namespace has no labels."""
    put_pool(backend, "a", "10.1.0.0/24", namespaceSelector="team == 'red'", allowedUses=["Workload"])
    put_pool(backend, "b", "10.2.0.0/24", namespaceSelector="team == 'blue'", allowedUses=["Workload"])
    put_pool(backend, "c", "10.3.0.0/24")
    for number in range(2):
        assert pool_of(take(ipam, f"net.c{number}", namespace_labels=namespace)[0]) == expected
    ipam.require_capacity((4,), {})


def test_error_says_why_each_pool_is_unusable(backend: Backend, ipam: IpamService) -> None:
    """A pool that the request names is used regardless of its selectors and assignment mode."""
    put_pool(backend, "a", "10.1.0.0/24", namespaceSelector="team == 'red'", allowedUses=["Workload"])
    put_pool(backend, "b", "10.2.0.0/24", nodeSelector="zone == 'b'")
    put_pool(backend, "c", "10.3.0.0/24", assignmentMode="Manual")
    put_pool(backend, "d", "10.4.0.0/24", disabled=True)
    put_pool(backend, "e", "10.5.0.0/24", allowedUses=["Tunnel"])
    with pytest.raises(PeerError, match="no IPv4 pool is available to node 'node1'") as refusal:
        take(ipam, "net.c", namespace_labels={"team": "blue"})
    for reason in (
        'a selects namespaces by team == "red"',
        'b selects nodes by zone == "b"',
        "c has assignmentMode Manual",
        "d is disabled",
        "e is for Tunnel",
    ):
        assert reason in refusal.value.details
    for name in "abc":
        assert take(ipam, f"net.{name}", pools={4: (name,)})
    for name, message in (("d", "does not exist"), ("e", "is not for workloads")):
        with pytest.raises(CallerError, match=message):
            take(ipam, f"net.{name}", pools={4: (name,)})


def test_pool_must_allow_the_use(backend: Backend, ipam: IpamService) -> None:
    """The address of a tunnel comes from a pool for tunnels, even if a pool is named or an address is requested."""
    put_pool(backend, "a", "10.1.0.0/24", allowedUses=["Workload"])
    put_pool(backend, "b", "10.2.0.0/24", allowedUses=["Tunnel"])
    assert pool_of(take(ipam, "net.c")[0]) == "10.1"
    assert pool_of(take(ipam, "tunnel", use="Tunnel")[0]) == "10.2"
    assert take(ipam, "tunnel2", at="10.2.0.9", use="Tunnel") == ("10.2.0.9",)
    with pytest.raises(CallerError, match=r"IP pool \(a\) is not for tunnels"):
        take(ipam, "tunnel3", pools={4: ("a",)}, use="Tunnel")
    with pytest.raises(CallerError, match=r"IP pool \(b\) is not for workloads"):
        take(ipam, "net.d", at="10.2.0.8")


def test_error_names_invalid_pools(backend: Backend) -> None:
    """Callers that name such a pool get its error, and so do callers without any other pool. The other pools are used."""
    put_node(backend)
    put_pool(backend, "bad", "10.65.0.0/28", blockSize=30, nodeSelector="rack ==")
    for named in ({}, {4: ("bad",)}):
        with pytest.raises(PeerError, match=r"IP pool 'bad': spec\.nodeSelector = 'rack ==' is not a selector") as refusal:
            take(IpamService(backend, NODE), "net.c1", pools=named)
        assert refusal.value.code == Code.POOL
    put_pool(backend, "good", "10.66.0.0/28", blockSize=30)
    (address,) = take(IpamService(backend, NODE), "net.c1")
    assert address.startswith("10.66.0.")


@pytest.mark.only_over("embedded", "piecemeal", "etcdv3")  # in the Kubernetes API other programs set these states
@pytest.mark.parametrize(
    "state",
    [
        {"metadata": {"deletionTimestamp": "2026-11-20T18:03:21Z"}},
        {"status": {"conditions": [{"type": "Allocatable", "status": "False", "reason": "CIDROverlap"}]}},
    ],
)
def test_unusable_pools_are_treated_as_disabled(backend: Backend, ipam: IpamService, state: dict[str, Any]) -> None:
    """A pool that is being deleted, or was found invalid, assigns no addresses. Its addresses can be released."""
    put_pool(backend, "a", "10.1.0.0/24")
    take(ipam, "net.c")
    metadata = {"name": "a"} | state.get("metadata", {})
    put(backend, ResourceKey("IPPool", "a"), Resource("IPPool", metadata, {"cidr": "10.1.0.0/24"}, state.get("status")))
    for arguments in ({}, {"pools": {4: ("a",)}}, {"at": "10.1.0.9"}):
        with pytest.raises(SvcError) as refusal:
            take(ipam, "net.d", **arguments)
        assert refusal.value.code in (Code.POOL, Code.ADDRESS_UNAVAILABLE)
    free(ipam, "net.c")
    assert holdings(backend) == {}


# reservations


def test_reserved_addresses_are_assigned_only_on_request(backend: Backend, ipam: IpamService) -> None:
    """They keep their position in the queue."""
    put_pool(backend, "a", TINY, blockSize=29)
    put_reservation(backend, "res", "10.65.0.0/31", "10.65.0.4", " 10.65.0.5/32 ")
    assert [take(ipam, f"net.c{n}")[0] for n in range(4)] == [f"10.65.0.{n}" for n in (2, 3, 6, 7)]
    with pytest.raises(PeerError, match="no free IPv4 address") as refusal:
        take(ipam, "net.late")
    assert "4 addresses reserved" in refusal.value.details
    with pytest.raises(PeerError, match="no free IPv4 address"):
        ipam.require_capacity((4,), {})
    assert take(ipam, "net.d", at="10.65.0.4") == ("10.65.0.4",)
    assert block_of(backend, "10.65.0.0").ordinals.unallocated() == [0, 1, 5]


def test_later_reservation_keeps_existing_allocations(backend: Backend, ipam: IpamService) -> None:
    """After a reservation is deleted, its addresses are assigned again, even by a node that had cached it."""
    put_pool(backend, "a", TINY, blockSize=29)
    take(ipam, "net.c0")
    put_reservation(backend, "res", "10.65.0.0/30")
    assert take(ipam, "net.c1") == ("10.65.0.4",)
    assert len(holdings(backend)) == 2
    put_reservation(backend, "res")
    assert take(ipam, "net.c2") == ("10.65.0.1",)


def test_reservations_are_read_again_before_a_refusal(backend: Backend) -> None:
    """This holds even if no event has announced the deletion."""

    class NoEvents(Through):
        def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
            return (1,) * len(kinds)

    put_node(backend)
    put_pool(backend, "a", TINY, blockSize=29)
    put_reservation(backend, "res", TINY)
    ipam = IpamService(NoEvents(backend), NODE)
    with pytest.raises(PeerError, match="no free IPv4 address"):
        take(ipam, "net.c")
    put_reservation(backend, "res", "10.65.0.0/30")
    assert take(ipam, "net.c") == ("10.65.0.4",)


@pytest.mark.only_over("embedded", "piecemeal", "etcdv3")  # an API server refuses such a reservation
def test_malformed_reservations_are_skipped(backend: Backend, ipam: IpamService) -> None:
    """Each assignment reports them. The other reservations apply."""
    put_pool(backend, "a", TINY, blockSize=29)
    put_reservation(backend, "res", "10.65.0.0", "nonsense", None, 7, "10.65.0.1/99", "10.65.0.3/31")
    put(
        backend, ResourceKey("IPReservation", "odd"), Resource("IPReservation", {"name": "odd"}, {"reservedCIDRs": "10.65.0.4"})
    )
    first, second = (ipam.assign(Assign(handle, {})) for handle in ("net.c", "net.d"))
    assert [str(address) for address in (*first.addresses, *second.addresses)] == ["10.65.0.1", "10.65.0.4"]
    assert first.errors == second.errors == ipam.require_capacity((4,), {})
    for text in ("nonsense", "null", "10.65.0.1/99", "'odd'"):
        assert text in " ".join(first.errors)
    assert ipam.assign(Assign("net.e", {}, pools={4: ("a",)})).errors == ()


def test_undecodable_pools_are_reported(backend: Backend, ipam: IpamService) -> None:
    """Assignments that skip such a pool report it, and so do refusals."""
    put_pool(backend, "a", TINY, blockSize=29)
    put_pool(backend, "b", "10.66.0.0/24", nodeSelector="rack = 'a'")
    fault = "IP pool 'b': spec.nodeSelector = \"rack = 'a'\" is not a selector"
    assert [each.startswith(fault) for each in ipam.assign(Assign("net.c", {})).errors] == [True]
    assert ipam.require_capacity((4,), {})[0].startswith(fault)
    assert ipam.require_capacity((4,), {4: ("a",)}) == ()
    for number in range(7):
        take(ipam, f"net.{number}")
    for addresses in ((), (Address("10.66.0.1"),)):
        with pytest.raises(SvcError) as refusal:
            ipam.assign(Assign("net.late", {}, addresses=addresses))
        assert fault in refusal.value.details


def test_completely_reserved_blocks_are_not_claimed(backend: Backend, ipam: IpamService) -> None:
    """This holds for any number of blocks: all of the pool may be reserved except its last block."""
    put_pool(backend, "six", "fd65::/64", blockSize=122)
    put_reservation(backend, "res", *(f"fd65::/{length}" for length in (65, 66)), *_all_but_the_last_block())
    (got,) = take(ipam, "net.c", versions=(6,))
    assert Address(got) == Address("fd65::ffff:ffff:ffff:ffc0")
    assert len(blocks(backend)) == 1


def _all_but_the_last_block() -> list[str]:
    """Return the networks that cover the pool except its last block."""
    found, first, length = [], int(Address("fd65::")), 64
    while length < 122:
        length += 1
        found.append(f"{_address(first)}/{length}")
        first += 1 << (128 - length)
    return found


def _address(number: int) -> Address:
    return Address.from_packed(number.to_bytes(16, "big"))
