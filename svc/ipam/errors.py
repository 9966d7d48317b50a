"""Errors that several modules of IPAM or its administration raise, each with its fix in `details`."""

from collections.abc import Iterable, Sequence

from svc._core.cidr import Address
from svc.model.errors import CallerError, Code, PeerError
from svc.model.field_errors import MAX_LISTED
from svc.model.pool import LOAD_BALANCER, TUNNEL, WORKLOAD, Pool
from svc.retry import ATTEMPTS

BENEFICIARIES = {WORKLOAD: "workloads", TUNNEL: "tunnels", LOAD_BALANCER: "load balancers"}


class PoolRefused(CallerError):
    """The error for a request that its pools cannot serve."""

    code = Code.POOL


class AddressUnavailable(CallerError):
    """The error for an address that cannot be assigned or released as requested."""

    code = Code.ADDRESS_UNAVAILABLE


class NoAddress(PeerError):
    """The error for a host that gets no address."""

    code = Code.NO_ADDRESS


def pool_missing(name: str, unreadable: Sequence[str] = ()) -> CallerError:
    """Return the error for a named pool that does not exist or is not usable. One of the unreadable pools may be the one."""
    return PoolRefused(
        f"IP pool ({name}) does not exist",
        details=f"no enabled pool has the name or CIDR {name!r}: see `svcctl pool get`, or create it with `svcctl pool apply`"
        f"{passed(unreadable)}",
    )


def pools_of_other_use(pools: Iterable[Pool], use: str) -> CallerError:
    """Return the error for pools whose allowedUses do not contain the use of the addresses."""
    uses = {pool.name: " and ".join(pool.allowed_uses) for pool in pools}
    return PoolRefused(
        f"IP pool ({', '.join(uses)}) is not for {BENEFICIARIES[use]}",
        details="; ".join(f"{name} is for {other}" for name, other in uses.items()) + f": add {use} to its allowedUses",
    )


def passed(unreadable: Sequence[str]) -> str:
    """Return the end of `details` that names the skipped pools; empty without any."""
    return f"; passed because it cannot be used: {'; '.join(shortened(unreadable))}" if unreadable else ""


def of_windows(address: Address, affinity: str | None) -> CallerError:
    """Return the error for an address in a block of a Windows node, which cannot be borrowed."""
    return AddressUnavailable(
        f"address {str(address)!r} belongs to a Windows node",
        details=f"its block has affinity {affinity}, and Windows nodes need theirs whole: use another address",
    )


def not_assigned(address: Address) -> CallerError:
    """Return the error for an address that is not assigned."""
    return AddressUnavailable(
        f"address {str(address)!r} is not assigned",
        details="no block has it, or it is free: `svcctl ipam show --ip` tells who holds an address",
    )


def in_cooldown(address: Address, since: str) -> CallerError:
    """Return the error for an address in cooldown. `since` is the time of its release."""
    return AddressUnavailable(
        f"address {str(address)!r} was released at {since} and rests",
        details="wait until the cooldown (ipCooldownSeconds) has passed, or ask for another address",
    )


def other_handle(address: Address, holder: str | None, expected: str) -> CallerError:
    """Return the error for an address that the expected handle does not hold."""
    return AddressUnavailable(
        f"address {str(address)!r} is not held by handle {expected!r}",
        details=f"it is held by handle {holder!r} by now: read the allocations again",
    )


def holds_more(handle: str, address: Address) -> CallerError:
    """Return the error for a handle that is to be released whole, and holds another address."""
    return AddressUnavailable(
        f"handle {handle!r} holds {str(address)!r} as well",
        details="all of its addresses are released together, or none: read the allocations again",
    )


def too_much_contention() -> PeerError:
    """Return the error after every attempt has conflicted."""
    return PeerError(
        f"the datastore kept changing under {ATTEMPTS} attempts to assign or release addresses",
        details="too many writers change the same blocks at once: try again",
        code=Code.CONCURRENCY,
    )


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first MAX_LISTED lines and the number of the others."""
    more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return [*lines[:MAX_LISTED], *more]
