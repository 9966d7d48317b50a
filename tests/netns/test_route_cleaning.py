"""`clean` over a real kernel: what svc-routes has made goes, and what another program has made or changed stays."""

from contextlib import closing
from typing import Any

import pytest

from harness.enter_netns import entered
from harness.ipam import put, put_affinity, put_pool, remove
from harness.route_world import World, eventually
from netns.test_route_faults import BLOCK, put_tunnel_node, reason
from netns.test_route_program import announced, world
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes.cleaning import clean_datastore, clean_node
from svc.routes.inputs import HANDLES
from svc.routes.kernel_part import KernelPart
from svc.routes.settings import Settings
from svc.routes.wanted import VXLAN_V4

__all__ = ["world"]  # a fixture

pytestmark = pytest.mark.root

OWN = ResourceKey("Node", "own")
REGISTERED = {"address": "198.18.0.1", "type": "InternalIP"}
OTHERS = [{"address": "203.0.113.1", "type": "ExternalIP"}]


@pytest.fixture
def tunnelled(world: World) -> World:
    """Return a world whose nodes are reached through tunnels. The own Node has no address."""
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    put_node(world, addresses=OTHERS)
    world.netns.ip("route", "add", "default", "via", "198.18.0.254")
    put_tunnel_node(world)
    put_affinity(world.store, BLOCK, node="n1")
    return world


@pytest.fixture
def used(tunnelled: World) -> World:
    """Return this world after svc-routes was there."""
    with tunnelled.running():
        assert eventually(lambda: reason(tunnelled) == "TUNNEL" and REGISTERED in addresses(tunnelled))
    return tunnelled


def put_node(world: World, **spec: Any) -> None:
    put(world.store, OWN, Resource("Node", {"name": "own", "uid": "own"}, spec))


def addresses(world: World) -> list[Any]:
    found = world.store.find(OWN)
    return [] if found is None else list(found.value.spec.get("addresses") or ())


def assigned(world: World) -> tuple[Any, ...]:
    return IpamService(world.store, "own").addresses_of(f"{HANDLES[VXLAN_V4]}own")


def clean(world: World) -> list[str]:
    settings = Settings({}, "own", state_dir=world.folder)
    with entered(world.netns), closing(KernelPart(DEFAULT)) as kernel:
        return clean_datastore(settings, world.store, kernel, clean_node(settings, kernel))


def test_everything_of_svc_routes_goes(used: World) -> None:
    """The address that it has registered, too, and no other one of the Node. A second time changes nothing."""
    assert len(assigned(used)) == 1
    assert announced(used)
    for _ in range(2):
        assert clean(used) == []
        assert (assigned(used), announced(used), addresses(used)) == ((), None, OTHERS)
        assert "vxlan.svc" not in used.netns.links()
        assert [path.name for path in used.folder.iterdir() if not path.name.startswith("store.db")] == []


@pytest.mark.parametrize(
    "given",
    [
        [{"address": "198.18.0.77", "type": "InternalIP"}],
        [{**REGISTERED, "note": "by an administrator"}],
        [{"address": "198.18.0.1", "type": "ExternalIP"}],
    ],
)
def test_an_address_that_was_changed_stays(used: World, given: list[Any]) -> None:
    put_node(used, addresses=given)
    assert clean(used) == []
    assert addresses(used) == given


def test_an_address_that_svc_routes_has_not_registered_stays(world: World) -> None:
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running():
        assert eventually(lambda: reason(world) == "DIRECT")
    assert clean(world) == []
    assert addresses(world) == [REGISTERED]


def test_a_missing_node_is_no_problem(used: World) -> None:
    remove(used.store, OWN)
    assert clean(used) == []
    assert assigned(used) == ()


def assign_as_another_program(world: World) -> Any:
    request = Assign(
        f"{HANDLES[VXLAN_V4]}own", {"node": "own", "type": "vxlanTunnelAddress"}, (4,), {4: ("pool",)}, use="Tunnel"
    )
    return IpamService(world.store, "own").assign(request).addresses[0]


def test_the_tunnel_address_of_another_program_stays(tunnelled: World) -> None:
    """It is on the node no more. svc-routes has used the address, as the handle is the same, and not assigned it."""
    address = assign_as_another_program(tunnelled)
    with tunnelled.running():
        assert eventually(lambda: reason(tunnelled) == "TUNNEL")
        assert announced(tunnelled) == str(address)
    (text,) = clean(tunnelled)
    assert text == "the address of tunnel 'vxlan-v4' stays assigned: another program has assigned it"
    assert assigned(tunnelled) == (address,)
    assert "vxlan.svc" not in tunnelled.netns.links()


def test_a_tunnel_of_another_program_stays(tunnelled: World) -> None:
    """With its device and its address, on a node on which svc-routes never worked."""
    address = assign_as_another_program(tunnelled)
    before = addresses(tunnelled)
    tunnelled.netns.run("sh", "-c", "ip link add vxlan.svc type vxlan id 4096 dev uplink dstport 4789 nolearning")
    (text,) = clean(tunnelled)
    assert "another program has assigned it" in text
    assert (assigned(tunnelled), addresses(tunnelled)) == ((address,), before)
    assert "vxlan.svc" in tunnelled.netns.links()


def test_beside_another_program_the_address_of_a_tunnel_stays(used: World) -> None:
    """The other program may use it by now, but not the registered address. When that program is gone, the rest goes."""
    used.netns.ip("link", "add", "flannel.1", "type", "bridge")
    (text,) = clean(used)
    assert "stay assigned, because another program routes: device 'flannel.1'" in text
    assert (len(assigned(used)), addresses(used)) == (1, OTHERS)
    used.netns.ip("link", "delete", "flannel.1")
    assert clean(used) == []
    assert assigned(used) == ()
