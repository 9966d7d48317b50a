"""The addresses of tunnels: which are kept, released and used, with a node that only notes what is asked of it."""

from collections.abc import Iterable

import pytest

from svc._core.cidr import Address
from svc.model.errors import PeerError
from svc.routes.own_node import HANDLES
from svc.routes.tunnel_addresses import TunnelAddresses
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6

FIRST, SECOND = Address("10.0.0.1"), Address("10.0.0.2")
NEEDED = {VXLAN_V4: ("pool",)}


class Node:
    """The calls of OwnNode."""

    def __init__(self, *held: Address) -> None:
        self.addresses = held
        self.released: list[str] = []
        self.is_full = False

    def assign(self, kind: str, pools: Iterable[str]) -> Address:
        if self.is_full:
            raise PeerError(f"no address for {kind} from {pools}")
        return self.addresses[0]

    def held(self, _: str) -> tuple[Address, ...]:
        return self.addresses

    def release(self, kind: str) -> None:
        self.released.append(kind)


def made(node: Node, **present: Address) -> TunnelAddresses:
    return TunnelAddresses(node, lambda: None, {VXLAN_V4: present["v4"]} if present else {})  # type: ignore[arg-type]


def test_addresses_of_devices_are_used_until_ipam_answers() -> None:
    tunnels = made(Node(SECOND), v4=FIRST)
    assert tunnels.addresses == {VXLAN_V4: FIRST}
    tunnels.want(NEEDED, {})
    tunnels.attempt_needed()
    assert tunnels.addresses == {VXLAN_V4: SECOND}


@pytest.mark.parametrize(("kept", "released"), [(frozenset(HANDLES), []), (frozenset({VXLAN_V4}), [VXLAN_V6, IPIP])])
def test_an_address_that_a_device_or_another_program_has_is_not_released(kept: frozenset[str], released: list[str]) -> None:
    node = Node()
    tunnels = made(node)
    tunnels.want({}, {}, kept)
    tunnels.attempt_needed()
    assert node.released == released
    tunnels.want({}, {})
    tunnels.attempt_needed()
    assert sorted(node.released) == sorted(HANDLES)


@pytest.mark.parametrize(("held", "used"), [((FIRST,), {VXLAN_V4: FIRST}), ((SECOND,), {}), ((), {})])
def test_an_address_that_ipam_has_given_back_is_used_no_longer(held: tuple[Address, ...], used: dict[str, Address]) -> None:
    """The pool is full. What the node has is not released."""
    node = Node(*held)
    node.is_full = True
    tunnels = made(node, v4=FIRST)
    tunnels.want(NEEDED, {}, frozenset(HANDLES))
    tunnels.attempt_needed()
    assert tunnels.addresses == used
    assert node.released == ([] if held else [VXLAN_V4])
    assert "no address" in tunnels.problems[VXLAN_V4]


def test_nothing_is_written_at_rest() -> None:
    node = Node()
    tunnels = made(node)
    tunnels.want({}, {})
    tunnels.rest()
    tunnels.attempt_needed()
    assert node.released == []
