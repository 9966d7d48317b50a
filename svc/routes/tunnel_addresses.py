"""The thread that gets the addresses of this node's tunnels from IPAM, so that a slow datastore delays no route."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from svc._core.cidr import Address
from svc.datastore.api import Backend
from svc.model.errors import SvcError, reason_of
from svc.retry import Backoff
from svc.routes.inputs import HANDLES, NodeFacts
from svc.routes.own_marks import OwnMarks
from svc.routes.settings import Settings

if TYPE_CHECKING:
    from svc.routes.own_node import OwnNode

CHECK_SECONDS: Final = 1800.0  # between checks that the address is still assigned and announced
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
_JOIN_SECONDS: Final = 5.0

Needed = Mapping[str, tuple[str, ...]]  # by kind of tunnel: the names of the pools that need it

log = logging.getLogger("svc.routes")


class TunnelAddresses:
    """Addresses by kind of tunnel. `changed` is called when they have changed. `want` and the properties are for any thread.

    `present` are the addresses that the devices have already: they are used until IPAM says others. `node` is called when
    the Node is needed first."""

    def __init__(
        self, node: "Callable[[], OwnNode]", changed: Callable[[], None], present: Mapping[str, Address], marks: OwnMarks
    ) -> None:
        self._make_node = node
        self._made_node: OwnNode | None = None
        self._changed = changed
        self._marks = marks
        self._present = frozenset(present)
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._needed: Needed | None = None
        self._own: Mapping[int, Address] = {}  # to register
        self._kept: frozenset[str] = frozenset()
        self._facts: NodeFacts | None = None
        self.addresses: dict[str, Address] = dict(present)
        self.problems: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="tunnel-addresses", daemon=True)

    @property
    def _node(self) -> "OwnNode":
        if self._made_node is None:
            self._made_node = self._make_node()
        return self._made_node

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread. The addresses stay assigned."""
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def want(
        self,
        needed: Needed,
        register: Mapping[int, Address],
        kept: frozenset[str] = frozenset(),
        facts: NodeFacts | None = None,
    ) -> None:
        """Set which tunnels are needed, and the addresses of this node that its Node must have.

        The addresses of the `kept` kinds are not released. `facts` are those of the Node: after a change they are verified."""
        present = (self._needed, self._own, self._kept, self._facts)
        if present == (needed, register, kept, facts):
            return
        self._needed, self._own, self._kept, self._facts = needed, register, kept, facts
        self._wake.set()

    def rest(self) -> None:
        """Write nothing until the next `want`."""
        self._needed = None

    def attempt_needed(self) -> None:
        """Carry out the last `want` in this thread, in place of `start`."""
        if self._needed is not None:
            self.attempt(self._needed)

    def _run(self) -> None:
        backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
        delay: float | None = None
        while True:
            self._wake.wait(delay)
            self._wake.clear()
            if self._ended.is_set():
                return
            needed = self._needed
            if needed is None:
                delay = None
                continue
            is_done = self.attempt(needed)
            if is_done:
                backoff.reset()
            delay = CHECK_SECONDS if is_done else backoff.next()

    def attempt(self, needed: Needed) -> bool:
        """Bring all tunnels and the Node to what is needed. Return whether that succeeded."""
        addresses, problems = dict(self.addresses), dict[str, str]()
        for kind in HANDLES:
            try:
                self._attempt_kind(kind, needed, addresses)
            except Exception as failure:  # of any kind: the thread must not end
                problems[kind] = f"{kind}: {_sentence(failure)}"
                if kind in addresses and self._is_lost(kind, addresses[kind]):
                    del addresses[kind]  # another node or pod may get it
        if self._own:
            try:
                self._node.register(self._own, self._marks.registered, self._marks.add_registered)
            except Exception as failure:  # as above
                problems["address"] = f"the address of this node cannot be registered: {_sentence(failure)}"
        for kind in problems.keys() - self.problems.keys():
            log.warning("%s", problems[kind])
        if (addresses, problems) != (self.addresses, self.problems):
            self.addresses, self.problems = addresses, problems  # replaced as a whole, because the main thread reads them
            self._changed()
        return not problems

    def _attempt_kind(self, kind: str, needed: Needed, addresses: dict[str, Address]) -> None:
        if kind in needed:
            self._note_origin(kind)  # before, so that a kill leaves no address without an owner
            addresses[kind] = self._node.assign(kind, needed[kind], addresses.get(kind))
        elif kind in self._marks.adopted:
            addresses.pop(kind, None)
        elif kind in self._marks.tunnels | self._present and kind not in self._kept:
            self._node.release(kind)
            self._marks.remove_tunnel(kind)
            self._present -= {kind}
            addresses.pop(kind, None)

    def _note_origin(self, kind: str) -> None:
        """Note whether the address of a tunnel is an own one: the handles are those of other programs, too."""
        if kind in self._marks.tunnels | self._marks.adopted:
            return
        if kind not in self._present and self._node.held(kind):
            self._marks.add_adopted(kind)
        else:
            self._marks.add_tunnel(kind)

    def _is_lost(self, kind: str, address: Address) -> bool:
        """Return whether IPAM says that this node does not have the address of a tunnel. It is then not announced any more."""
        try:
            held = self._node.held(kind)
            if not held:
                self._node.release(kind)
        except Exception:  # of any kind: the caller has reported why nothing is known
            return False
        return address not in held


def _sentence(failure: Exception) -> str:
    if isinstance(failure, SvcError | OSError):
        return reason_of(failure)
    log.warning("an error of svc", exc_info=failure)
    return f"an error of svc, {type(failure).__name__}: {failure}"


def node_maker(backend: Backend, settings: Settings) -> "Callable[[], OwnNode]":
    """Return what makes the Node of this machine, which loads IPAM: no first route waits for it."""

    def make() -> "OwnNode":
        from svc.attach.store_identity import StoreIdentity, note_name
        from svc.routes.own_node import OwnNode
        from svc.routes.store_notes import FileNotes

        name = note_name(settings.names.plugin, settings.datastore)
        same_kind = f"*kind={settings.datastore.get('kind', '')}*"  # revisions of others cannot be compared
        identity = StoreIdentity(backend.place, FileNotes(settings.state_dir), name, same_kind)
        return OwnNode(backend, settings.names, settings.node, identity)

    return make
