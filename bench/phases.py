"""The agent's log line of a call on standard error, with the milliseconds of each phase."""

import re
import statistics
from collections.abc import Sequence

from bench.runtime import Outcome

_PHASE = re.compile(rb" (\w+)=(\d+\.\d+)(?= |\n)")


def phases(outcome: Outcome) -> dict[str, float]:
    """Return the phases by name, in the order of the line. `total` is the time in the agent without `queue`."""
    lines = [line for line in outcome.stderr.splitlines(keepends=True) if b" total=" in line]
    if not lines:
        raise ValueError(f"the agent did not say how long it took: {outcome.stderr!r}")
    return {name.decode(): float(value) for name, value in _PHASE.findall(lines[-1])}


def inside_ms(outcome: Outcome) -> float:
    return phases(outcome)["total"]


def outside_ms(outcome: Outcome) -> float:
    """Return the time of the call outside the agent. Time in the queue counts as inside."""
    found = phases(outcome)
    return outcome.ms - found["total"] - found["queue"]


def medians(outcomes: Sequence[Outcome]) -> str:
    """Return the median of every phase as text."""
    found = [phases(outcome) for outcome in outcomes]
    return " ".join(f"{name} {statistics.median(one[name] for one in found):.2f}" for name in found[0])
