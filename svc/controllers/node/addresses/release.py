"""The release of handles that live reads have confirmed as leaked."""

import logging
from collections.abc import Iterable, Iterator, Sequence

from svc._core.cidr import Address
from svc.controllers.node.addresses.held import Held
from svc.controllers.node.addresses.live import Confirmed
from svc.datastore.api import Backend, KeyedError, UndecodableEntry
from svc.ipam.requests import ReleaseTarget
from svc.ipam.service import IpamService
from svc.model.errors import CallerError
from svc.model.keys import VIRTUAL, Host
from svc.names import Names

_MOST_WRITES = 100  # of one request: below the limit of a transaction

log = logging.getLogger("svc.controllers")


class Releaser:
    """Releases handles in one datastore, several with one request."""

    def __init__(self, store: Backend, names: Names) -> None:
        self._ipam = IpamService(store, Host(names.controllers, VIRTUAL))  # a host without blocks

    def release(self, confirmed: Sequence[Confirmed]) -> Iterator[tuple[Confirmed, str]]:
        """Release handles, and yield each with the reason if it was kept. Raise SvcError if the datastore fails.

        A damaged document keeps the handles that need it, and no others.
        """
        for group in _groups(confirmed):
            refusal = self._attempt(group)
            if refusal and len(group) > 1:
                yield from ((each, self._attempt([each])) for each in group)
            else:
                yield from ((each, refusal) for each in group)

    def release_tunnel(self, held: Held) -> str:
        """Release the address of a tunnel. Return why it was kept. Raise SvcError if the datastore fails."""
        return self._attempt([Confirmed(held.handle, [held], "")])

    def _attempt(self, group: Sequence[Confirmed]) -> str:
        """Release all handles of a group, or none; without transactions perhaps some. Return the reason of a refusal."""
        targets = [ReleaseTarget(Address(held.address), held.handle, held.sequence) for each in group for held in each.held]
        try:
            deletions = dict.fromkeys(write for each in group for write in each.deletions)  # two handles may share one
            self._ipam.release_whole_handles(targets, tuple(deletions))
        except (CallerError, KeyedError, UndecodableEntry) as refusal:
            return str(refusal)
        return ""


def _groups(confirmed: Iterable[Confirmed]) -> Iterator[list[Confirmed]]:
    """Yield groups that need at most _MOST_WRITES writes each."""
    group: list[Confirmed] = []
    writes = 0
    for each in confirmed:
        cost = 1 + len(each.held) + len(each.deletions)
        if group and writes + cost > _MOST_WRITES:
            yield group
            group, writes = [], 0
        group.append(each)
        writes += cost
    if group:
        yield group
