"""Whether addresses may be assigned from each pool: the condition `Allocatable`, which follows from all pools together.

Of pools that overlap, one has the range. It is the one that has been allocatable; otherwise one that is being deleted, then a
disabled one, then a new one. Of equal ones it is the oldest, then the first by name.
"""

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin.pools import cidr_of
from svc.model.resource import Resource
from svc.timestamps import rfc3339
from svc.values import dataclass, replace

Json = dict[str, Any]

ALLOCATABLE: Final = "Allocatable"
OK, DISABLED, OVERLAP, TERMINATING = "OK", "PoolDisabled", "CIDROverlap", "Terminating"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the condition of a pool should be. `rival` is the pool that has the range in its place; empty if none has."""

    reason: str
    message: str
    rival: str = ""

    @property
    def status(self) -> str:
        return "True" if self.reason == OK else "False"


def judge(pools: Iterable[Resource]) -> dict[str, Verdict]:
    """Return the verdict on each pool, by name. Pools without a valid range have none: nothing is assigned from them."""
    admitted: dict[str, Cidr] = {}
    verdicts = {}
    for pool in sorted(pools, key=_precedence):
        cidr = cidr_of(pool)
        if cidr is None:
            continue
        rival = next((name for name, other in admitted.items() if other.overlaps(cidr)), "")
        verdicts[pool.name] = _verdict(pool, rival)
        if not rival:
            admitted[pool.name] = cidr
    return verdicts


def is_terminating(pool: Resource) -> bool:
    """Return whether the pool is being deleted, and a finalizer delays that."""
    return bool(pool.metadata.get("deletionTimestamp"))


def with_condition(pool: Resource, verdict: Verdict, now: datetime | None = None) -> Resource:
    """Return the pool with this condition; the same object if it has it. Other conditions stay."""
    status = pool.status or {}
    present = [each for each in status.get("conditions") or () if isinstance(each, dict)]
    before: Json = next((each for each in present if each.get("type") == ALLOCATABLE), {})
    wanted = {"type": ALLOCATABLE, "status": verdict.status, "reason": verdict.reason, "message": verdict.message}
    if wanted.items() <= before.items():
        return pool
    changed = before.get("lastTransitionTime") if before.get("status") == verdict.status else None
    wanted["lastTransitionTime"] = changed or rfc3339((now or datetime.now(timezone.utc)).timestamp())
    others = [each for each in present if each.get("type") != ALLOCATABLE]
    return replace(pool, status=status | {"conditions": [*others, wanted]})


def with_finalizer(pool: Resource, finalizer: str, *, wanted: bool) -> Resource:
    """Return the pool with the finalizer, or without it; the same object if nothing changes. Other finalizers stay."""
    present = list(pool.metadata.get("finalizers") or ())
    if (finalizer in present) == wanted:
        return pool
    changed = [*present, finalizer] if wanted else [each for each in present if each != finalizer]
    return replace(pool, metadata=pool.metadata | {"finalizers": changed})


def _precedence(pool: Resource) -> tuple[int, str, str]:
    conditions = (pool.status or {}).get("conditions") or ()
    was_allocatable = {"type": ALLOCATABLE, "status": "True"}.items()
    if is_terminating(pool):
        rank = 1
    elif pool.spec.get("disabled"):
        rank = 2
    else:
        rank = 0 if any(was_allocatable <= each.items() for each in conditions if isinstance(each, dict)) else 3
    return rank, str(pool.metadata.get("creationTimestamp") or ""), pool.name


def _verdict(pool: Resource, rival: str) -> Verdict:
    if is_terminating(pool):
        return Verdict(TERMINATING, "the pool is being deleted, as soon as no block of it is left", rival)
    if rival:
        return Verdict(OVERLAP, f"IP pool {rival!r} has addresses of spec.cidr: delete one of the two", rival)
    if pool.spec.get("disabled"):
        return Verdict(DISABLED, "spec.disabled is true: set it to false to assign addresses")
    return Verdict(OK, "addresses may be assigned")
