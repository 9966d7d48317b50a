"""The datastores that network configurations name, and the former ones that rows of the journal still have.

Rows follow the configuration of their own network (see `moved_store`). The journal keeps the present datastore of each network,
so that a restarted agent and the next one-shot call know a move that they have not seen.
"""

import time
from contextlib import suppress

import orjson

from svc import deadline
from svc.attach.journal import Journal
from svc.attach.record import SessionKey
from svc.attach.token_cache import without_secrets
from svc.datastore.api import StoreError
from svc.values import dataclass

Network = tuple[str, str]  # profile and name

_NOTE = "network "
_LISTED = "installed "


@dataclass(frozen=True, slots=True)
class Former:
    """The datastores, except the present one, that a network had (`own`), and that the rows of other networks have."""

    own: frozenset[SessionKey]
    others: frozenset[SessionKey]


class NetworkStores:
    """The datastore of each network, as its last ADD, STATUS or GC had it, or an installed network list that was changed.

    `former` has networks whose next ADD must compare former datastores with the present one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.present: dict[Network, SessionKey] = {}
        self.former: dict[Network, Former] = {}
        self._called: dict[Network, float] = {}  # monotonic time of the last `note`
        self._unwritten: set[Network] = set()  # the journal lacks their present datastore

    def called_within(self, seconds: float) -> set[SessionKey]:
        """Return the datastores of the networks that had an ADD, STATUS or GC within this time."""
        since = time.monotonic() - seconds
        networks = [network for network, moment in list(self._called.items()) if moment > since]
        return {self.present[network] for network in networks if network in self.present}

    def load(self) -> None:
        """Read the datastores of all networks from the journal. Raise StoreError if it fails."""
        for name, text in self._journal.notes(_NOTE + "*").items():
            if (where := _decoded(text)) is not None:
                self._set(tuple(orjson.loads(name.removeprefix(_NOTE))), where, None)

    def last(self, network: Network) -> SessionKey | None:
        """Return the datastore of a network, as this process or an earlier one has noted it. Raise StoreError."""
        return self.present.get(network) or _decoded(self._journal.note(_note_of(network)))

    def note(self, network: Network, where: SessionKey) -> None:
        """Note the datastore that the configuration of a network names. Raise StoreError if the journal cannot be read."""
        self._called[network] = time.monotonic()
        if self.present.get(network) != where:
            self._set(network, where, _decoded(self._journal.note(_note_of(network))))
            self._unwritten.add(network)
        if network in self._unwritten and network not in self.former:
            self.settle(network)

    def note_listed(self, network: Network, where: SessionKey) -> None:
        """Do as `note` for an installed network list, if it has changed since this was called. Raise StoreError."""
        name, text = _LISTED + _note_of(network), _encoded(where)
        if self._journal.note(name) != text:
            self._journal.put_note(name, text)
            self.note(network, where)

    def settle(self, network: Network) -> None:
        """Store the present datastore of a network, after its former ones were compared with it.

        Do not wait for a locked journal: a STATUS has 1 s, and reports it. The next call, or the next process, tries again.
        """
        self.former.pop(network, None)
        name, text = _note_of(network), _encoded(self.present[network])
        with suppress(StoreError):  # it is locked, or the disk is full
            if self._journal.note(name) != text:
                with deadline.limit(0):
                    self._journal.put_note(name, text)
            self._unwritten.discard(network)

    def _set(self, network: Network, where: SessionKey, before: SessionKey | None) -> None:
        rows = {*self._journal.datastores(), *([(network[1], before)] if before else ())}
        here = where.profile, where.node
        former = {(name, each) for name, each in rows if (each.profile, each.node) == here and each.store != where.store}
        if former:
            own = frozenset(each for name, each in former if name == network[1])
            self.former[network] = Former(own, frozenset(each for name, each in former if name != network[1]))
        self.present[network] = where


def _note_of(network: Network) -> str:
    return _NOTE + orjson.dumps(network).decode()


def _encoded(where: SessionKey) -> str:
    return orjson.dumps([without_secrets(where.datastore), where.node, where.profile]).decode()


def _decoded(text: str) -> SessionKey | None:
    try:
        settings, node, profile = orjson.loads(text)
        return SessionKey(dict(settings), node, profile)
    except (ValueError, TypeError):
        return None
