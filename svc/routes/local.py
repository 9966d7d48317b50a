"""This node as the planner needs it: its addresses, and its tunnels whose address and parent are known."""

from collections.abc import Iterator, Mapping
from typing import Final

from svc._core.cidr import Address
from svc.names import Names
from svc.routes.inputs import Inputs, NodeFacts, needed_tunnels
from svc.routes.interfaces import Interface, interface_with, own_addresses
from svc.routes.planning import Local, tunnel_mac
from svc.routes.settings import Settings
from svc.routes.tunnel_values import OVERHEAD
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6, Tunnel

_DEFAULT_MTU: Final = 1500


def addresses_of_node(settings: Settings, inputs: Inputs, interfaces: tuple[Interface, ...]) -> dict[int, Address]:
    """Return the addresses of this node: of the interface that the settings name, of its Node, or of the default route."""
    facts = inputs.nodes.get(settings.node, NodeFacts(settings.node))
    found = own_addresses(interfaces, settings.interface)
    return found if settings.interface else {**found, **facts.addresses}


def moved_addresses(
    settings: Settings, interfaces: tuple[Interface, ...], own: Mapping[int, Address], registered: Mapping[int, Address]
) -> dict[int, Address]:
    """Return the present addresses in place of those that svc-routes has registered and that no interface has any more."""
    lost = [version for version, address in registered.items() if own.get(version) == address]
    lost = [version for version in lost if interface_with(interfaces, registered[version]) is None]
    found = own_addresses(interfaces, settings.interface) if lost else {}
    return {version: found[version] for version in lost if version in found}


def local_of(
    settings: Settings,
    inputs: Inputs,
    interfaces: tuple[Interface, ...],
    own: Mapping[int, Address],
    tunnels: Mapping[str, Address],
) -> Local:
    """Return this node. `tunnels` has the addresses that IPAM has assigned."""
    kinds = needed_tunnels(inputs.pools) if settings.use_tunnels else {}
    made = {kind: _tunnel(settings, kind, tunnels[kind], interfaces, own) for kind in kinds if kind in tunnels}
    return Local(
        settings.node,
        own,
        {kind: tunnel for kind, tunnel in made.items() if tunnel is not None},
        use_pod_cidr=settings.use_pod_cidr,
        use_tunnels=settings.use_tunnels,
        use_nat=settings.use_nat,
    )


def pools_by_tunnel(settings: Settings, inputs: Inputs) -> dict[str, tuple[str, ...]]:
    """Return the names of the pools that need each kind of tunnel."""
    kinds = needed_tunnels(inputs.pools) if settings.use_tunnels else {}
    return {kind: tuple(pool.name for pool in pools) for kind, pools in kinds.items()}


def underlay_problems(
    settings: Settings, inputs: Inputs, interfaces: tuple[Interface, ...], own: Mapping[int, Address]
) -> Iterator[str]:
    """Yield a sentence for an interface that is not there, and for each tunnel that pools need and that lacks an underlay."""
    if settings.interface and settings.interface not in {interface.name for interface in interfaces}:
        yield f"interface {settings.interface!r} does not exist: correct the option --interface"
    for kind in needed_tunnels(inputs.pools) if settings.use_tunnels else ():
        version = _version(kind)
        if version not in own:
            yield f"tunnel {kind!r} cannot be made: this node has no IPv{version} address"
        elif _underlay(kind, interfaces, own) is None:
            cause = f"no interface has {own[version]}, the address of this node"
            yield f"tunnel {kind!r} cannot be made: {cause}: correct the address of the node, or give --interface"


def pod_mtu(settings: Settings, inputs: Inputs, interfaces: tuple[Interface, ...], own: Mapping[int, Address]) -> int:
    """Return the MTU of pods: that of the smallest tunnel that pools need, also if it has no address yet.

    Otherwise it is that of the interface; 0 if neither is known."""
    kinds = needed_tunnels(inputs.pools) if settings.use_tunnels else {}
    found = [(kind, underlay) for kind in kinds if (underlay := _underlay(kind, interfaces, own))]
    if found:
        return min(_mtu(settings, kind, parent) for kind, (_, parent) in found)
    parents = [interface_with(interfaces, address) for address in own.values()]
    return settings.mtu or min((parent.mtu for parent in parents if parent is not None), default=0)


def device_name(names: Names, kind: str) -> str:
    """Return the name of the device of a kind of tunnel."""
    return {VXLAN_V4: names.vxlan_device, VXLAN_V6: names.vxlan6_device, IPIP: names.ipip_device}[kind]


def _tunnel(
    settings: Settings, kind: str, address: Address, interfaces: tuple[Interface, ...], own: Mapping[int, Address]
) -> Tunnel | None:
    """Return a tunnel; None if this node has no underlay for it."""
    found = _underlay(kind, interfaces, own)
    if found is None:
        return None
    underlay, parent = found
    mac = b"" if kind == IPIP else tunnel_mac(settings.node, kind)
    name = device_name(settings.names, kind)
    return Tunnel(kind, name, parent.name, underlay, address, _mtu(settings, kind, parent), mac)


def _underlay(kind: str, interfaces: tuple[Interface, ...], own: Mapping[int, Address]) -> tuple[Address, Interface] | None:
    address = own.get(_version(kind))
    parent = None if address is None else interface_with(interfaces, address)
    return None if address is None or parent is None else (address, parent)


def _version(kind: str) -> int:
    return 6 if kind == VXLAN_V6 else 4


def _mtu(settings: Settings, kind: str, parent: Interface) -> int:
    return (settings.mtu or parent.mtu or _DEFAULT_MTU) - OVERHEAD[kind]
