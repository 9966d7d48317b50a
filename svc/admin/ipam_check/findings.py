"""The contradictions that a check can find: their IDs, and what an operator does about each.

A call in flight looks like some of them for a moment. Such a `Candidate` becomes a finding only if two observations, `wait`
seconds apart, show it with the same `evidence`.
"""

from typing import Any, Final

from svc.values import dataclass

SETTLE_SECONDS: Final = 5.0  # after which a DEL in flight has released what its endpoint no longer shows
CONFIRM_SECONDS: Final = 60.0  # between two observations of what an ADD or a DEL in flight looks like
PENDING_SECONDS: Final = 300.0  # for which an affinity may be pending

DATASTORE, AGENT = "datastore", "agent"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a finding ID means, and its fix. `{}` in the fix stands for the object. `source` knows whether there is one."""

    meaning: str
    fix: str
    source: str = DATASTORE


_FROM_REPORT = "svcctl ipam check --report FILE, then svcctl ipam release --from-report FILE"
_RECREATE = "recreate the workload of {}"
_REPAIRED = "the next ADD of its node that needs a block completes the claim"

KINDS: Final[dict[str, Kind]] = {
    "leaked": Kind("allocated, and nothing uses it", _FROM_REPORT),
    "unallocated": Kind(
        "in use and in a pool, but not allocated", f"{_RECREATE}; reserve the address with svcctl reservation apply until then"
    ),
    "outside": Kind("in use, and in no enabled pool", f"enable its pool with svcctl pool apply, or {_RECREATE}"),
    "duplicate": Kind(
        "two workloads or interfaces have it, or two blocks",
        "recreate all but one of the workloads of {}; of one whose container is gone, repeat the DEL",
    ),
    "cooldown-over": Kind(
        "its cooldown has ended, and it is not free yet", "the next ADD or DEL that writes the block frees it"
    ),
    "cooldown-future": Kind(
        "released in the future",
        "set the clock of the node that is wrong, this one or that which released it; the address is free a cooldown after "
        "that time",
    ),
    "handle-empty": Kind("a handle without addresses", _FROM_REPORT),
    "handle-missing": Kind(
        "an allocation whose handle does not exist",
        "recreate its workload; if that has ended, svcctl ipam release --ip with each of the addresses",
    ),
    "handle-miscounted": Kind(
        "a handle that counts other addresses than the blocks show", "the DEL of its container deletes it"
    ),
    "block-invalid": Kind("a block that contradicts itself", "correct it, or restore it from a backup: svc does not use it"),
    "block-orphaned": Kind(
        "a block in no pool",
        "make a pool that has it with svcctl pool apply; if nothing uses it, svcctl pool delete that pool again",
    ),
    "block-size": Kind(
        "a block of another size than its pool's",
        "end the workloads that use it: when it is empty, it is deleted, at the latest by the next ADD of its node",
    ),
    "affinity-stale": Kind("an affinity whose block does not exist, or has another host", f"{_REPAIRED}, or deletes {{}}"),
    "affinity-missing": Kind(
        "a block that names a host without an affinity",
        "end the workloads that use {}: when it is empty, another node reclaims it as soon as it needs a block",
    ),
    "affinity-double": Kind(
        "a block to which two hosts have an affinity", "the next ADD on the node that {} does not name deletes one"
    ),
    "affinity-pending": Kind("a claim or release that was not completed", f"{_REPAIRED}"),
    "node-gone": Kind(
        "a node that does not exist has blocks or addresses",
        f"register {{}} again, and delete it with svcctl node delete {{}} or kubectl; {_FROM_REPORT} for its addresses",
    ),
    "pools-overlap": Kind("pools that share addresses", "svcctl pool delete the one of {} without addresses in use"),
    "undecodable": Kind("a document that svc cannot read", "correct or delete {}; svc leaves it alone"),
    "attachment-unallocated": Kind(
        "an attachment whose address is not allocated to it",
        f"the agent claims a free address again within 3 minutes; if another workload has it, {_RECREATE}",
        AGENT,
    ),
    "allocation-unattached": Kind(
        "an allocation of the node that no attachment has",
        "the GC of the runtime releases it; if its pod has ended, svcctl ipam release --ip {}",
        AGENT,
    ),
    "link-unknown": Kind("an interface that no attachment has", "if no container uses it, ip link delete {}", AGENT),
    "link-missing": Kind("an attachment whose interface does not exist", _RECREATE, AGENT),
    "attachment-unfinished": Kind(
        "an ADD or DEL that was not completed", "the agent completes it when it can; svcctl pending get shows a release", AGENT
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction. `since` is the start time, as far as it is known (RFC 3339), and `problem` what is observed."""

    id: str
    object: str
    addresses: tuple[str, ...] = ()
    node: str = ""
    since: str = ""
    problem: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the form of reports and of the output for programs."""
        texts = {name: getattr(self, name) for name in ("id", "object", "node", "since", "problem", "fix")}
        return texts | {"addresses": list(self.addresses)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may be a finding: at once, or if another observation shows it with the same evidence after `wait` seconds."""

    finding: Finding
    evidence: str = ""
    wait: float = 0.0

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for two observations of the same contradiction."""
        return self.finding.id, self.finding.object, self.evidence


def candidate(
    id_: str,
    object_: str,
    problem: str,
    *,
    addresses: tuple[str, ...] = (),
    node: str = "",
    since: str = "",
    fix: str = "",
    evidence: str = "",
    wait: float = 0.0,
) -> Candidate:
    """Return a candidate, with the fix of its ID unless another one is given. Raise KeyError for an unknown ID."""
    remedy = fix or KINDS[id_].fix.replace("{}", object_)
    return Candidate(Finding(id_, object_, addresses, node, since, problem, remedy), evidence, wait)
