"""Pools of a request: by name, by selectors, by address."""

from typing import Any

import pytest

from svc._core.cidr import Address
from svc.ipam.pools import PoolSet
from svc.model.errors import CallerError, Code, PeerError
from svc.model.pool import Pool
from svc.model.resource import Resource

USES = ("Workload", "Tunnel", "LoadBalancer")


def pool(name: str, cidr: str, **spec: Any) -> Pool:
    return Pool.from_resource(Resource("IPPool", {"name": name}, {"cidr": cidr, **spec}))


def pools(*given: Pool) -> PoolSet:
    return PoolSet(given)


def named(found: PoolSet, *names: str, version: int = 4) -> list[str]:
    return [pool.name for pool in found.named(names, version)]


def selected(found: PoolSet, version: int = 4, /, **labels: str) -> list[str]:
    return [pool.name for pool in found.selected(version, labels)]


def in_a_pool(found: PoolSet, address: str) -> bool:
    """Return whether the address can be requested."""
    try:
        found.block_of(Address(address))
    except CallerError:
        return False
    return True


def test_all_pools_of_the_family_are_selected_in_name_order() -> None:
    """The order in which they were read does not matter."""
    found = pools(pool("c", "10.2.0.0/16"), pool("a", "10.1.0.0/16"), pool("v6", "fd00::/64"), pool("b", "10.0.0.0/16"))
    assert selected(found) == ["a", "b", "c"]
    assert selected(found, 6) == ["v6"]


def test_unreadable_pool_may_have_the_requested_cidr() -> None:
    """If its CIDR is unknown, the error mentions it. If its CIDR contains the requested one, it is the cause."""
    found = PoolSet((), {"bad": "bad: no JSON", "odd": "odd: no selector"}, {"10.1.0.0/16": "odd: no selector"})
    with pytest.raises(CallerError) as caught:
        found.named(["10.2.0.0/16"], 4)
    assert caught.value.details.endswith("; passed because it cannot be used: bad: no JSON")
    with pytest.raises(PeerError, match="odd: no selector"):
        found.named(["10.1.0.9/16"], 4)


def test_without_pools_none_is_selected() -> None:
    """The datastore is empty."""
    assert selected(pools()) == []
    assert not in_a_pool(pools(), "10.0.0.1")


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("all()", {}, True),
        ("zone == 'a'", {"zone": "a"}, True),
        ("zone == 'a'", {"zone": "b"}, False),
        ("zone == 'a'", {}, False),
        ("zone != 'a'", {}, True),
        ("has(rack)", {"rack": ""}, True),
        ("!has(rack)", {"rack": "7"}, False),
        ("zone in {'a', 'b'} && has(rack)", {"zone": "b", "rack": "7"}, True),
        ("zone not in {'a', 'b'}", {"zone": "b"}, False),
    ],
)
def test_nodes_use_the_pools_that_select_them(selector: str, labels: dict[str, str], matches: bool) -> None:
    """The labels of the node count. A pool without a selector selects every node."""
    found = pools(pool("p", "10.0.0.0/16", nodeSelector=selector))
    assert selected(found, **labels) == ["p"] * matches


def test_pools_of_other_namespaces_are_not_selected() -> None:
    """A pool with a namespace selector is not for a workload without a namespace."""
    found = pools(
        pool("theirs", "10.0.0.0/16", namespaceSelector="team == 'x'", allowedUses=["Workload"]),
        pool("ours", "10.1.0.0/16", namespaceSelector="all()", allowedUses=["Workload"]),
    )
    assert selected(found) == ["ours"]
    assert [pool.name for pool in found.selected(4, {}, {"team": "x"})] == ["ours", "theirs"]


def test_manual_pools_are_used_only_by_name() -> None:
    """Automatic assignment does not use them."""
    found = pools(pool("p", "10.0.0.0/16", assignmentMode="Manual"))
    assert selected(found) == []
    assert named(found, "p") == ["p"]


@pytest.mark.parametrize("uses", [["Workload"], ["Tunnel"], ["Tunnel", "Workload"], None], ids=str)
def test_only_pools_for_workloads_are_selected(uses: list[str] | None) -> None:
    """A pool without `allowedUses` is for workloads too."""
    found = pools(pool("p", "10.0.0.0/16", allowedUses=uses))
    assert selected(found) == ([] if uses == ["Tunnel"] else ["p"])


@pytest.mark.parametrize("uses", [["Tunnel"], ["LoadBalancer"]], ids=str)
def test_named_pools_of_another_use_are_skipped(uses: list[str]) -> None:
    """Otherwise a tunnel or a load balancer could get the same address."""
    found = pools(pool("p", "10.0.0.0/16", allowedUses=uses), pool("q", "10.1.0.0/16"))
    assert named(found, "p", "q") == ["q"]
    with pytest.raises(CallerError) as refusal:
        named(found, "p", "10.0.0.0/16")
    assert refusal.value.msg == "IP pool (p) is not for workloads"
    assert refusal.value.code == Code.POOL
    assert f"p is for {uses[0]}" in refusal.value.details


@pytest.mark.parametrize("text", ["p", "10.0.0.0/16"])
def test_pools_are_named_by_name_or_range(text: str) -> None:
    """Both are unique."""
    assert named(pools(pool("p", "10.0.0.0/16"), pool("q", "10.1.0.0/16")), text) == ["p"]


@pytest.mark.parametrize("text", ["fd00::/64", "FD00::/64", "fd00:0:0::/64", "fd00:0000:0000:0000:0000:0000:0000:0000/64"])
def test_ranges_may_have_any_spelling(text: str) -> None:
    """Ranges are compared as numbers. The CIDR of the pool may have any spelling too."""
    assert named(pools(pool("p", "fd00::/64")), text, version=6) == ["p"]
    assert named(pools(pool("p", "FD00:0::/64")), text, version=6) == ["p"]


@pytest.mark.parametrize("text", ["10.0.0.1/16", "10.0.255.255/16"])
def test_address_with_a_length_means_its_network(text: str) -> None:
    assert named(pools(pool("p", "10.0.0.0/16")), text) == ["p"]


def test_named_pools_are_used_in_the_requested_order() -> None:
    """Their selectors do not count."""
    found = pools(pool("a", "10.0.0.0/16", nodeSelector="zone == 'x'"), pool("b", "10.1.0.0/16"), pool("c", "10.2.0.0/16"))
    assert named(found, "c", "10.0.0.0/16", "b") == ["c", "a", "b"]


@pytest.mark.parametrize(
    "text",
    ["nosuch", "P", "", "10.0.0.0/17", "10.0.0.0/15", "10.0.0.0", "10.0.0.1/17", "10.0.0.0/255.255.0.0", " p", "10.0.0.0/16 "],
)
def test_pools_that_do_not_exist_are_refused(text: str) -> None:
    """A part of a pool, or a similar name, is not a pool (specification, rule R2)."""
    with pytest.raises(CallerError) as refusal:
        named(pools(pool("p", "10.0.0.0/16")), "p", text)
    assert refusal.value.msg == f"IP pool ({text}) does not exist"
    assert refusal.value.code == Code.POOL
    assert "svcctl pool" in refusal.value.details


@pytest.mark.parametrize("text", ["p", "10.0.0.0/16"])
@pytest.mark.parametrize(
    ("metadata", "spec", "status"),
    [
        ({}, {"disabled": True}, None),
        ({"deletionTimestamp": "2026-11-20T18:02:53Z"}, {}, None),
        ({}, {}, {"conditions": [{"type": "Allocatable", "status": "False", "reason": "CIDROverlap"}]}),
    ],
    ids=["disabled", "deleted", "not allocatable"],
)
def test_unusable_pools_are_never_used(text: str, metadata: dict[str, Any], spec: dict[str, Any], status: Any) -> None:
    """This holds for selection, for names and for addresses."""
    unusable = Pool.from_resource(Resource("IPPool", {"name": "p"} | metadata, {"cidr": "10.0.0.0/16"} | spec, status))
    found = pools(unusable, pool("q", "10.1.0.0/16"))
    assert selected(found) == ["q"]
    assert not in_a_pool(found, "10.0.0.1")
    with pytest.raises(CallerError, match=r"does not exist: no enabled pool"):
        named(found, text)


@pytest.mark.parametrize(("text", "version"), [("p", 6), ("10.0.0.0/16", 6), ("q", 4), ("fd00::/64", 4)])
def test_pools_of_the_other_family_are_refused(text: str, version: int) -> None:
    """They were named in the list of the other family."""
    with pytest.raises(CallerError) as refusal:
        named(pools(pool("p", "10.0.0.0/16"), pool("q", "fd00::/64")), text, version=version)
    assert refusal.value.msg == f"IP pool ({text}) is not an IPv{version} pool"
    assert refusal.value.code == Code.POOL


def test_addresses_are_found_in_their_pool_and_block() -> None:
    """The addresses are at both ends of pools and blocks, and just outside."""
    found = pools(pool("p", "10.0.0.0/24", blockSize=28), pool("q", "fd00::/112", blockSize=124))
    expected = {
        "10.0.0.0": "10.0.0.0/28",
        "10.0.0.15": "10.0.0.0/28",
        "10.0.0.16": "10.0.0.16/28",
        "10.0.0.255": "10.0.0.240/28",
        "fd00::ffff": "fd00::fff0/124",
    }
    assert {text: str(found.block_of(Address(text))) for text in expected} == expected
    assert not any(in_a_pool(found, text) for text in ("10.0.1.0", "9.255.255.255", "fd00::1:0", "fcff::ffff"))


def test_addresses_outside_all_pools_are_refused() -> None:
    """The error has the address."""
    with pytest.raises(CallerError) as refusal:
        pools(pool("p", "10.0.0.0/24")).block_of(Address("10.0.1.0"))
    assert refusal.value.msg == "address '10.0.1.0' is not in any enabled IP pool"
    assert refusal.value.code == Code.ADDRESS_UNAVAILABLE


@pytest.mark.parametrize("use", USES)
def test_requested_address_must_be_in_a_pool_for_workloads(use: str) -> None:
    """Selectors and assignment mode do not count."""
    found = pools(pool("p", "10.0.0.0/16", allowedUses=[use], assignmentMode="Manual", nodeSelector="zone == 'x'"))
    assert in_a_pool(found, "10.0.0.1") == (use == "Workload")


def test_a_thousand_pools_are_distinguished() -> None:
    """Each is found by its name, its range and its addresses."""
    found = pools(*(pool(f"p{n}", f"10.{n // 250}.{n % 250}.0/24") for n in range(1000)))
    for number in (0, 1, 499, 999):
        text = f"10.{number // 250}.{number % 250}"
        assert named(found, f"p{number}", f"{text}.0/24") == [f"p{number}"] * 2
        assert str(found.block_of(Address(f"{text}.77"))) == f"{text}.64/26"
    assert len(selected(found)) == 1000
