"""How long allocations have looked leaked, and when that is confirmed. Pure: the caller gives the time."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from svc.controllers.node.addresses.held import Held


class Candidate(NamedTuple):
    """An allocation that looks leaked, and since when without interruption."""

    held: Held
    since: float


class Candidates:
    """The candidates of one process, by address. For one thread.

    A new allocation of the address, which has another handle or sequence number, begins its own time.
    """

    def __init__(self) -> None:
        self._present: dict[str, Candidate] = {}

    def __len__(self) -> int:
        return len(self._present)

    def observe(self, now: float, suspects: Mapping[str, Held]) -> None:
        """Note what looks leaked now. Forget all other candidates."""
        before, self._present = self._present, {}
        for address, held in suspects.items():
            known = before.get(address)
            is_same = known is not None and (known.held.handle, known.held.sequence) == (held.handle, held.sequence)
            self._present[address] = Candidate(held, known.since if known is not None and is_same else now)

    def forget(self, addresses: Iterable[str]) -> None:
        """Let these be valid again. Their time begins from zero if they look leaked later."""
        for address in addresses:
            self._present.pop(address, None)

    def all(self) -> Collection[Candidate]:
        return tuple(self._present.values())

    def confirmed(self, now: float, grace: float, *, gone: Collection[str] = ()) -> dict[str, list[Held]]:
        """Return, by handle, the candidates that are older than the grace period; of `gone` nodes at once.

        A handle is left out unless all of its candidates are confirmed. A grace period of 0 never ends.
        """
        by_handle: dict[str, list[Held]] = {}
        waiting: set[str] = set()
        for held, since in self._present.values():
            if held.node in gone or (grace > 0 and now - since >= grace):
                by_handle.setdefault(held.handle, []).append(held)
            else:
                waiting.add(held.handle)
        return {handle: each for handle, each in by_handle.items() if handle not in waiting}

    def next_due(self, now: float, grace: float) -> float | None:
        """Return when the next candidate is confirmed; None if none will be. Confirmed ones do not count."""
        ends = [each.since + grace for each in self._present.values() if each.since + grace > now] if grace > 0 else []
        return min(ends, default=None)
