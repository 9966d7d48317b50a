"""Errors of IPAM, each with its fix in `details`."""

from collections.abc import Iterable, Sequence

from svc._core.cidr import Address, Cidr
from svc.model.errors import CallerError, Code, PeerError
from svc.model.field_errors import MAX_LISTED
from svc.model.keys import Host
from svc.model.pool import LOAD_BALANCER, TUNNEL, WORKLOAD, Pool

_BENEFICIARIES = {WORKLOAD: "workloads", TUNNEL: "tunnels", LOAD_BALANCER: "load balancers"}


def pool_missing(name: str, unreadable: Sequence[str] = ()) -> CallerError:
    """Return the error for a named pool that does not exist or is not usable. One of the unreadable pools may be the one."""
    return _refused_pool(
        f"IP pool ({name}) does not exist",
        f"no enabled pool has the name or CIDR {name!r}: see `svcctl pool get`, or create it with `svcctl pool apply`"
        f"{_passed(unreadable)}",
    )


def pool_unreadable(fault: str) -> PeerError:
    """Return the error for a named pool that exists but cannot be read."""
    return PeerError(
        f"a pool that is asked for cannot be used: {fault}",
        details="put it right with `svcctl pool apply`; a document that cannot be decoded must be deleted before",
        code=Code.POOL,
    )


def pool_wrong_family(name: str, version: int) -> CallerError:
    """Return the error for an IPv4 pool that is named for IPv6, or the reverse."""
    return _refused_pool(
        f"IP pool ({name}) is not an IPv{version} pool",
        f"name it in the list of the other family, or remove it from the IPv{version} pools",
    )


def pools_of_other_use(pools: Iterable[Pool], use: str) -> CallerError:
    """Return the error for pools whose allowedUses do not contain the use of the addresses."""
    uses = {pool.name: " and ".join(pool.allowed_uses) for pool in pools}
    return _refused_pool(
        f"IP pool ({', '.join(uses)}) is not for {_BENEFICIARIES[use]}",
        "; ".join(f"{name} is for {other}" for name, other in uses.items()) + f": add {use} to its allowedUses",
    )


def no_pool(version: int, host: Host, reasons: Sequence[str]) -> PeerError:
    """Return the error for a request without pool names if no pool serves it. `reasons` has one text per pool."""
    listed = "; ".join(_shortened(reasons)) or "there is none"
    return PeerError(
        f"no IPv{version} pool is available to {host}",
        details=f"no enabled pool of this family exists whose nodeSelector selects the node: {listed}. See `svcctl pool get`",
        code=Code.POOL,
    )


def node_missing(node: str, remedy: str) -> PeerError:
    """Return the error for a node without a Node resource. `remedy` comes from a store that registers nodes itself."""
    return PeerError(
        f"node {node!r} does not exist in the datastore",
        details=remedy or "register it with `svcctl node apply`, or set `nodename` in the network configuration",
        code=Code.POOL,
    )


def exhausted(version: int, host: Host, usage: Sequence[str], *, strict: bool) -> PeerError:
    """Return the error for pools without a free address that the host may use. `usage` has the host's share of each pool."""
    tried = "; ".join(_shortened(usage)) + (". Strict affinity is on: blocks of others were not tried" if strict else "")
    return PeerError(
        f"no free IPv{version} address for {host}",
        details=f"pools tried: {tried}. Add a pool with `svcctl pool apply`, or free addresses",
        code=Code.NO_ADDRESS,
    )


def block_limit(version: int, host: Host, owned: int, limit: int) -> PeerError:
    """Return the error for a host that has the maximum number of blocks and no free address in them."""
    return PeerError(
        f"no free IPv{version} address for {host}: it has {owned} blocks, and may have {limit}",
        details="free addresses of the node, or raise the limit with `svcctl ipam configure --max-blocks-per-host NUMBER`",
        code=Code.NO_ADDRESS,
    )


def claims_off(version: int, host: Host) -> PeerError:
    """Return the error for a host without a free address if hosts may not claim blocks."""
    return PeerError(
        f"no free IPv{version} address for {host}: none in its blocks, and it may not claim another",
        details="autoAllocateBlocks is false: give the node a block, or `svcctl ipam configure --auto-allocate-blocks true`",
        code=Code.NO_ADDRESS,
    )


def outside_pools(address: Address, unreadable: Sequence[str]) -> CallerError:
    """Return the error for a requested address in no usable pool. An unreadable pool may contain it."""
    return _unavailable(
        f"address {str(address)!r} is not in any enabled IP pool",
        f"ask for an address inside a pool (`svcctl pool get` lists them){_passed(unreadable)}",
    )


def _passed(unreadable: Sequence[str]) -> str:
    return f"; passed because it cannot be used: {'; '.join(_shortened(unreadable))}" if unreadable else ""


def overlapping_block(address: Address, overlapping: Cidr) -> CallerError:
    """Return the error for an address whose block would overlap a block of another size, so that both could assign it."""
    return _unavailable(
        f"address {str(address)!r} cannot be assigned",
        f"its block would overlap block {overlapping}, which has another size; free the addresses of that block first",
    )


def other_host(use: str, host: Host) -> CallerError:
    """Return the error for a use that the host does not serve: virtual hosts are for services, nodes for all others."""
    return _refused_pool(
        f"addresses for {_BENEFICIARIES[use]} cannot be assigned by {host}",
        f"use {LOAD_BALANCER} is for virtual hosts, every other one is for nodes",
    )


def other_affinity(address: Address, host: Host, affinity: str | None) -> CallerError:
    """Return the error for a requested address in another block than the host's, if affinity is strict."""
    return _unavailable(
        f"address {str(address)!r} cannot be assigned on {host}",
        f"its block has affinity {affinity or 'to no node'}, and strictAffinity is true: ask for one of this node",
    )


def of_windows(address: Address, affinity: str | None) -> CallerError:
    """Return the error for an address in a block of a Windows node, which cannot be borrowed."""
    return _unavailable(
        f"address {str(address)!r} belongs to a Windows node",
        f"its block has affinity {affinity}, and Windows nodes need theirs whole: use another address",
    )


def handle_full(handle: str, version: int, limit: int) -> CallerError:
    """Return the error for a handle that holds its maximum number of addresses of a family."""
    return _unavailable(
        f"handle {handle!r} holds {limit} IPv{version} addresses already",
        "it may not hold more: ask for one of those, or release one first",
    )


def not_assigned(address: Address) -> CallerError:
    """Return the error for an address that is not assigned."""
    return _unavailable(
        f"address {str(address)!r} is not assigned",
        "no block has it, or it is free: `svcctl ipam show --ip` tells who holds an address",
    )


def in_cooldown(address: Address, since: str) -> CallerError:
    """Return the error for an address in cooldown. `since` is the time of its release."""
    return _unavailable(
        f"address {str(address)!r} was released at {since} and rests",
        "wait until the cooldown (ipCooldownSeconds) has passed, or ask for another address",
    )


def other_handle(address: Address, holder: str | None, expected: str) -> CallerError:
    """Return the error for an address that the expected handle does not hold."""
    return _unavailable(
        f"address {str(address)!r} is not held by handle {expected!r}",
        f"it is held by handle {holder!r} by now: read the allocations again",
    )


def other_allocation(address: Address, sequence: int | None, expected: int) -> CallerError:
    """Return the error for an address that was released and assigned again since the caller read its allocation."""
    return _unavailable(
        f"address {str(address)!r} was assigned again",
        f"its allocation has sequence number {sequence}, not {expected}: read the allocations again",
    )


def other_owner(address: Address, which: str, found: str, expected: str) -> CallerError:
    """Return the error for an owner attribute that does not have the value that the caller expects before a change."""
    return _unavailable(
        f"the {which} owner of address {str(address)!r} is {found}", f"it should be {expected}: read the attributes again"
    )


def live_outside_pools(address: Address) -> PeerError:
    """Return the error for an address of a live attachment in no pool. The pool must exist before its block can be claimed."""
    return PeerError(
        f"no IP pool has address {str(address)!r} of a live attachment",
        details="make the pool again, with the same CIDR: the address is claimed then",
        code=Code.POOL,
    )


def range_outside_pools(cidr: Cidr, reason: str) -> CallerError:
    """Return the error for a range that does not consist of whole blocks: affinities are released by blocks."""
    return CallerError(f"the blocks of {cidr} cannot be released", details=f"{reason}: see `svcctl pool get`", code=Code.POOL)


def not_released(count: int, failures: Sequence[str]) -> PeerError:
    """Return the error for affinities that could not be released. The other affinities of the call were released."""
    return PeerError(
        f"{len(failures)} of {count} blocks could not be released", details="; ".join(_shortened(failures)), code=Code.DATASTORE
    )


def already_assigned(address: Address, holder: str) -> CallerError:
    """Return the error for a requested address that is assigned already."""
    return _unavailable(
        f"address {str(address)!r} is already assigned",
        f"it is held by {holder}; release that first, or ask for another address",
    )


def too_much_contention(attempts: int) -> PeerError:
    """Return the error after every attempt has conflicted."""
    return PeerError(
        f"the datastore kept changing under {attempts} attempts to assign or release addresses",
        details="too many writers change the same blocks at once: try again",
        code=Code.CONCURRENCY,
    )


def _unavailable(msg: str, details: str) -> CallerError:
    return CallerError(msg, details=details, code=Code.ADDRESS_UNAVAILABLE)


def _refused_pool(msg: str, details: str) -> CallerError:
    return CallerError(msg, details=details, code=Code.POOL)


def _shortened(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return [*lines[:MAX_LISTED], *more]
