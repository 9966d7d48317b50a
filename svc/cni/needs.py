"""What ADDs of a network need, derived from its configuration."""

from svc.attach.record import SessionKey
from svc.attach.status import Wanted
from svc.netconf import host_local
from svc.netconf.netconf import NetConf


def memory_key(netconf: NetConf) -> tuple[str, str]:
    """Return the key of a network for recorded failures: its name, and the `ipam` section of a delegated network."""
    return netconf.name, str(netconf.raw["ipam"]) if netconf.ipam.is_delegated else ""


def families(netconf: NetConf) -> tuple[int, ...]:
    """Return the families of which an ADD assigns an address."""
    return (4,) * netconf.ipam.assign_ipv4 + (6,) * netconf.ipam.assign_ipv6


def pools(netconf: NetConf) -> dict[int, tuple[str, ...]]:
    """Return the pools that an ADD may use, by family; empty means any."""
    return {4: netconf.ipam.ipv4_pools, 6: netconf.ipam.ipv6_pools}


def wanted_by(netconf: NetConf, where: SessionKey) -> Wanted:
    """Return what an ADD of the network needs, for STATUS."""
    is_delegated = netconf.ipam.is_delegated
    reads_api = netconf.policy or not is_delegated or bool(host_local.families(netconf.raw))
    return Wanted(
        memory_key(netconf),
        where,
        () if is_delegated else families(netconf),
        {} if is_delegated else pools(netconf),
        netconf.orchestrator if reads_api else (),
        policy=netconf.policy,
    )
