"""Handles that count other addresses than the blocks show: a killed ADD or DEL has left them.

A handle that grows is written before its block, and one that shrinks after it, so a call in flight looks the same. Only what
has had one revision for a minute is corrected. If that call still writes its block later, for example because its process was
paused, its write conflicts: the correction rewrites the block first.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from svc.admin.ipam_check.findings import CONFIRM_SECONDS
from svc.admin.ipam_check.handles import held_by_handle, judge
from svc.controllers.controller import Controller, Shared
from svc.controllers.observations import Observations
from svc.controllers.settings import NODE
from svc.datastore.api import Conflict, NotFound, UndecodableEntry
from svc.ipam.handle_repair import correct_handle
from svc.ipam.releasing import bare
from svc.model.keys import HandleKey
from svc.values import dataclass

log = logging.getLogger("svc.controllers")


@dataclass(frozen=True, slots=True)
class WrongHandle:
    """A handle that has looked wrong at this revision, and the blocks in which the tables show its addresses."""

    handle: str
    revision: str
    cidrs: tuple[str, ...]


class IpamHandles(Controller[WrongHandle]):
    """Deletes handles without addresses, and corrects wrong counts."""

    name = NODE

    def __init__(self, shared: Shared, clock: Callable[[], float] = time.monotonic) -> None:
        self._handles, self._blocks = shared.tables.handles, shared.tables.blocks
        self._wrong: Observations[str, str] = Observations(clock)
        self._unreadable: set[str] = set()  # errors that were reported
        super().__init__(shared, (self._handles, self._blocks))

    @property
    def round_seconds(self) -> float:
        """Shorter while a handle waits for its second look."""
        return min(super().round_seconds, self._wrong.wait(CONFIRM_SECONDS) or super().round_seconds)

    def round_items(self) -> Iterable[WrongHandle]:
        revisions, held = self._judged()
        found = self._wrong.look(revisions, CONFIRM_SECONDS)
        return [WrongHandle(handle, revisions[handle], tuple(held.get(bare(handle), ()))) for handle in found]

    def settle(self, item: WrongHandle) -> None:
        """Read the handle and its blocks, and correct the handle unless it was changed."""
        try:
            with suppress(Conflict, NotFound):  # a call has changed the handle or a block, and the next round looks again
                after = correct_handle(self.shared.store, item.handle, item.revision, item.cidrs)
                if after is not None:
                    log.info("controller %s: handle %s %s", self.name, item.handle, _shown(after.blocks))
        except UndecodableEntry as error:  # nothing is known about its addresses, and a retry would not help
            if str(error) not in self._unreadable:
                self._unreadable.add(str(error))
                log.warning("controller %s: handles of a block stay as they are: %s", self.name, error.as_text())

    def shown(self, item: WrongHandle) -> str:
        return f"handle {item.handle}"

    def _judged(self) -> tuple[dict[str, str], Mapping[str, Mapping[str, int]]]:
        """Return the revisions of the handles that look wrong, and the addresses of all handles."""
        handles = self._handles.snapshot()  # before the blocks: a handle that grows is written first
        held = held_by_handle(entry.value for entry in self._blocks.snapshot().values())
        wrong = {}
        for key, entry in handles.items():
            assert isinstance(key, HandleKey)
            if judge(key.handle, entry.value.blocks, held):
                wrong[key.handle] = entry.revision
        return wrong, held


def _shown(counts: Mapping[str, int]) -> str:
    if not counts:
        return "is deleted: no address was allocated to it"
    return "is corrected: it counts " + ", ".join(f"{count} addresses in {cidr}" for cidr, count in counts.items())
