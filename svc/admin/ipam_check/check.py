"""The check: one observation, and another one if something must be seen twice."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from svc.admin.ipam_check import addresses, affinities, blocks, handles, others
from svc.admin.ipam_check.findings import KINDS, Candidate, Finding
from svc.admin.ipam_check.observation import Observation, Place
from svc.admin.ipam_check.reading import observe
from svc.admin.ipam_check.verdicts import Verdicts
from svc.values import dataclass

Shown = TypeVar("Shown")
Wait = Callable[[float, Mapping[str, int]], bool]
"""Gets the seconds until the second observation and the number of candidates by ID. It returns after them, or False at once:
then what must be seen twice is left out."""

_ORDER: Final = {name: number for number, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Result:
    """The findings, in the order of their IDs and objects, and the observation that shows them.

    `unconfirmed` counts, by ID, what was seen once and would have to be seen again.
    """

    findings: tuple[Finding, ...]
    observation: Observation
    verdicts: Verdicts
    unconfirmed: Mapping[str, int]


def check(place: Place, wait: Wait | None = None) -> Result:
    """Check a datastore. Raise StoreError if it cannot be read."""
    findings, (found, verdicts), unconfirmed = confirm(lambda: _candidates(place), wait)
    return Result(findings, found, verdicts, unconfirmed)


def confirm(
    look: Callable[[], tuple[list[Candidate], Shown]], wait: Wait | None = None
) -> tuple[tuple[Finding, ...], Shown, Mapping[str, int]]:
    """Return the findings, what the last look shows, and the number of other candidates by ID. Look again if necessary."""
    first, shown = look()
    waiting = [each for each in first if each.wait]
    if not waiting:
        return _sorted(first), shown, {}
    counts, seconds = Counter(each.finding.id for each in waiting), max(each.wait for each in waiting)
    if not (wait or _sleep)(seconds, counts):
        return _sorted([each for each in first if not each.wait]), shown, counts
    seen = {each.identity for each in first}
    del shown  # so that the memory has one observation at a time
    second, shown = look()
    found = [each for each in second if not each.wait or (each.wait <= seconds and each.identity in seen)]
    left = Counter(each.finding.id for each in second) - Counter(each.finding.id for each in found)
    return _sorted(found), shown, left


def _candidates(place: Place) -> tuple[list[Candidate], tuple[Observation, Verdicts]]:
    found = observe(place)
    verdicts = Verdicts(found)
    parts = (others.check(found), blocks.check(found), affinities.check(found), handles.check(found))
    return [each for part in (addresses.check(found, verdicts), *parts) for each in part], (found, verdicts)


def _sorted(candidates: list[Candidate]) -> tuple[Finding, ...]:
    return tuple(sorted({each.finding for each in candidates}, key=lambda finding: (_ORDER[finding.id], finding.object)))


def _sleep(seconds: float, _counts: Mapping[str, int]) -> bool:
    time.sleep(seconds)
    return True
