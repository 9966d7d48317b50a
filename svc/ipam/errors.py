"""Refusals of IPAM, each with its remedy."""

from collections.abc import Iterable, Sequence

from svc._core.cidr import Address, Cidr
from svc.model.errors import CallerError, Code, PeerError
from svc.model.faults import MAX_LISTED
from svc.model.pool import Pool


def pool_missing(name: str) -> CallerError:
    """The request names a pool that is not there, or out of use."""
    return CallerError(
        f"IP pool ({name}) does not exist",
        details=f"no enabled pool has the name or CIDR {name!r}: see `svcctl pool get`, or create it with `svcctl pool apply`",
        code=Code.POOL,
    )


def pool_wrong_family(name: str, version: int) -> CallerError:
    """The request names an IPv4 pool for IPv6 or the other way round."""
    return CallerError(
        f"IP pool ({name}) is not an IPv{version} pool",
        details=f"name it in the list of the other family, or remove it from the IPv{version} pools",
        code=Code.POOL,
    )


def pools_of_other_use(pools: Iterable[Pool]) -> CallerError:
    """The request is for pools whose allowedUses leave workloads out."""
    uses = {pool.name: " and ".join(pool.allowed_uses) for pool in pools}
    return CallerError(
        f"IP pool ({', '.join(uses)}) is not for workloads",
        details="; ".join(f"{name} is for {use}" for name, use in uses.items()) + ": add Workload to its allowedUses",
        code=Code.POOL,
    )


def no_pool(version: int, node: str) -> PeerError:
    """The request names no pool, and none selects the node."""
    return PeerError(
        f"no IPv{version} pool is available to node {node!r}",
        details="no enabled pool of this family exists whose nodeSelector selects the node: see `svcctl pool get`",
        code=Code.POOL,
    )


def node_missing(node: str) -> PeerError:
    """No pool can be selected for a node whose labels are unknown."""
    return PeerError(
        f"node {node!r} does not exist in the datastore",
        details="register it with `svcctl node apply`, or set `nodename` in the network configuration",
        code=Code.POOL,
    )


def exhausted(version: int, node: str, usage: Sequence[str]) -> PeerError:
    """The pools tried, with the node's share of each, have no free address."""
    listed = [*usage[:MAX_LISTED], *([f"and {len(usage) - MAX_LISTED} more"] if len(usage) > MAX_LISTED else [])]
    return PeerError(
        f"no free IPv{version} address for node {node!r}",
        details="pools tried: " + "; ".join(listed) + ". Add a pool with `svcctl pool apply`, or free addresses",
        code=Code.NO_ADDRESS,
    )


def outside_pools(address: Address) -> CallerError:
    """Addresses that no pool has cannot be asked for."""
    return CallerError(
        f"address {str(address)!r} is not in any enabled IP pool",
        details="ask for an address inside a pool (`svcctl pool get` lists them)",
        code=Code.ADDRESS_UNAVAILABLE,
    )


def straddled(address: Address, overlapping: Cidr) -> CallerError:
    """Making the block of the address would give others of its addresses out twice."""
    return CallerError(
        f"address {str(address)!r} cannot be assigned",
        details=f"its block would overlap block {overlapping}, which has another size; free the addresses of that block first",
        code=Code.ADDRESS_UNAVAILABLE,
    )


def taken(address: Address, holder: str) -> CallerError:
    """The address asked for is somebody's."""
    return CallerError(
        f"address {str(address)!r} is already assigned",
        details=f"it is held by {holder}; release that first, or ask for another address",
        code=Code.ADDRESS_UNAVAILABLE,
    )


def too_much_contention(attempts: int) -> PeerError:
    """Every attempt lost a race."""
    return PeerError(
        f"the datastore kept changing under {attempts} attempts to assign or release addresses",
        details="too many writers change the same blocks at once: try again",
        code=Code.CONCURRENCY,
    )
