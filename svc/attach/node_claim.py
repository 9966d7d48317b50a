"""The claim of a node's name in a datastore that several nodes share: at most one machine assigns addresses under a name.

1. A session claims the name of its node before it assigns an address. All processes of one state directory, on one machine
   and in one boot, share the claim. An agent increments its counter every 5 s.
2. Any other claimant watches the claim for 15 s. If the counter changes, the present claimant is alive: the newcomer is
   refused, and continues to watch for 60 s after each call that needs the name. Otherwise it takes the claim over by
   compare-and-swap and records its predecessor.
3. If the datastore has transactions, every write of the session compares the fence of the claim. A takeover changes the fence,
   so that in-flight writes of the former claimant fail. A session that has lost the claim compares its former fence for 60 s
   more. That is longer than any call takes, so no call that began before the loss assigns an address.
4. Attachments that were recorded in another boot, or not at all, are released only under a decided claim. The journal may be
   a copy, as on a cloned machine, and its attachments are live on the machine that has the claim.
"""

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from svc import deadline
from svc.batching import Batcher
from svc.datastore.api import Backend, Check, Conflict, Create, Entry, Forbidden, NotFound, StoreError, Update, Write
from svc.model.claim import Claimant, NodeClaim, NodeFence
from svc.model.errors import Code, PeerError
from svc.model.keys import Key, NodeClaimKey, NodeClaimQuery, NodeFenceKey
from svc.retry import attempts
from svc.values import dataclass, replace
from svc.waits.wait import Wait, WaitOutcome

RENEW_SECONDS = 5.0  # interval of increments of the counter, and of reads while the other claimant is alive
WATCH_SECONDS = 15.0  # time without a change of the counter before a takeover
POLL_SECONDS = 1.0  # interval of reads while it is not known whether the claimant is alive
RETRY_SECONDS = 60.0  # interval of attempts without the permission to claim
STEP_SECONDS = 5.0  # timeout of one increment or one read
WAIT_SECONDS = 20.0  # upper bound of an ADD's wait for the decision
ASKED_SECONDS = 60.0  # a refused call asks for the name this long; the agent probes its networks more often
LOST_SECONDS = 60.0  # time in which writes compare the fence of a lost claim
RECENT_SECONDS = 600  # time in which GC keeps addresses after a takeover

_ATTEMPTS = 5  # of a compare-and-swap, if other claimants change the claim

_log = logging.getLogger(__name__)


class CopiedRow(PeerError):
    """The error if the living claimant wrote the row: the journal of this machine is a copy of the claimant's."""

    code = Code.NODE_CLAIMED


@dataclass(frozen=True, slots=True)
class _Held:
    """This claimant has the claim. `fence` is None if the datastore has no transactions."""

    claim: Entry[NodeClaim]
    fence: Entry[NodeFence] | None


@dataclass(frozen=True, slots=True)
class _Watched:
    """Another claimant has the claim. Times are monotonic."""

    value: NodeClaim
    since: float  # when its counter was first seen or last changed
    alive: bool = False  # whether the counter has changed, or this claimant has lost the claim to it
    former: Entry[NodeFence] | None = None  # the fence of this claimant
    lost: float = 0.0  # when this claimant has lost the claim


@dataclass(frozen=True, slots=True)
class _Unenforced:
    """The session has no permission to claim."""


_Situation = _Held | _Watched | _Unenforced


class NodeNameClaim:
    """The claim of one session. Thread-safe. If `renews`, a thread increments the counter until `close`.

    Without `renews`, the thread only watches the claim of another claimant. The first use of the claim makes the first request.
    """

    def __init__(self, backend: Backend, node: str, claimant: Claimant, *, renews: bool) -> None:
        self._backend = backend
        self._node = node
        self._claimant = claimant
        self._renews = renews
        self._lock = threading.Lock()
        self._situation: _Situation | None = None
        self._asked = -math.inf  # when a call that assigns addresses was last refused (monotonic clock)
        self._waits: list[Wait] = []
        self._looks: Batcher[None, None] = Batcher(self._look, lambda: backend.place)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def require(self) -> None:
        """Return if the session may assign addresses for the node. Raise StoreError if the claim cannot be read.

        Raise PeerError (NODE_CLAIMED) if another machine uses the name, (TRY_AGAIN) if that is not known yet.
        """
        situation = self._known()
        if isinstance(situation, _Watched):
            self._asked = time.monotonic()
            raise self._error(situation)

    def require_release(self, boot: str) -> None:
        """Return if the session may release an attachment that was recorded in another boot, or an unrecorded one (empty).

        Raise CopiedRow if the living claimant recorded it. Raise PeerError if another machine uses the name, if that is not
        known yet, or if the former claimant, another machine, recorded it: its attachment may be live for some time.
        """
        situation = self._known()
        if isinstance(situation, _Watched):
            if situation.alive and situation.value.claimant.boot == boot:
                raise CopiedRow(f"its row is a copy: {situation.value.claimant} has the attachment, and is alive")
            raise self._error(situation)
        former = situation.claim.value.predecessor if isinstance(situation, _Held) else None
        if former is not None and former.boot == boot and self._is_elsewhere(former) and self.had_recent_predecessor():
            raise PeerError(
                f"its row is a copy: {former} had the attachment, and may still have it",
                details=f"it is released {RECENT_SECONDS} s after that machine was last alive",
                code=Code.TRY_AGAIN,
            )

    def is_undecided(self) -> bool:
        """Return whether it is not known yet if the name may be used. Raise StoreError."""
        return _is_open(self._known())

    def decision(self) -> Wait | None:
        """Return a wait that ends when it is known whether the name may be used; None if it is known. Raise StoreError."""
        self._known()
        with self._lock:
            if not _is_open(self._situation):
                return None
            wait = Wait(time.monotonic() + WAIT_SECONDS, f"the claim of node {self._node!r} is decided")
            self._waits.append(wait)
        return wait

    def require_decided(self) -> None:
        """Wait for the decision on this thread, then do as `require`."""
        wait = self.decision()
        if wait is not None:
            wait.join()
        self.require()

    def checks(self) -> Sequence[Check]:
        """Return the comparisons for a write transaction. Raise StoreError if the claim cannot be read.

        Return none if another claimant has the claim, except in the first 60 s after this one has lost it.
        """
        situation, fence = self._known(), None
        if isinstance(situation, _Held):
            fence = situation.fence
        elif isinstance(situation, _Watched) and time.monotonic() < situation.lost + LOST_SECONDS:
            fence = situation.former
        return () if fence is None else (Check(fence.key, fence.revision),)

    def on_conflict(self) -> None:
        """Read the claim again after a comparison of `checks` has failed, then do as `require`."""
        self._looks.run(None)
        self.require()

    def fence(self) -> None:
        """Make in-flight writes of earlier processes fail, if the datastore has transactions. Raise StoreError. Idempotent."""
        for _ in attempts(_ATTEMPTS):
            situation = self._known()
            if not isinstance(situation, _Held) or situation.fence is None:
                return
            with suppress(Conflict, NotFound):
                self._renew(situation, fence=situation.fence)
                return
            self._looks.run(None)
        raise _contended(self._node)

    def had_recent_predecessor(self) -> bool:
        """Return whether another claimant held the claim within the last 10 minutes. Raise StoreError."""
        situation = self._known()
        if not isinstance(situation, _Held) or situation.claim.value.predecessor is None:
            return False
        return abs(time.time() - situation.claim.value.ended) < RECENT_SECONDS

    def close(self) -> None:
        """End the thread after its present request."""
        self._closed.set()

    def join(self) -> None:
        """Wait up to 1 s for the thread to end. Call it when the backend is closed."""
        if self._thread is not None:
            self._thread.join(1.0)

    # situations

    def _known(self) -> _Situation:
        if self._situation is None:
            self._looks.run(None)
        assert self._situation is not None
        return self._situation

    def _look(self, callers: Sequence[None]) -> list[None]:
        """Read the claim, and claim the name if no living claimant has it."""
        self._enter(self._read_and_claim())
        return [None for _ in callers]

    def _read_and_claim(self) -> _Situation:
        try:
            for _ in attempts(_ATTEMPTS):
                with suppress(Conflict, NotFound):
                    return self._attempt({entry.key: entry for entry in self._backend.list(NodeClaimQuery(self._node))})
        except Forbidden as refusal:
            if not isinstance(self._situation, _Unenforced):
                _log.warning("the name of node %r is not claimed, so that a second node of this name is not noticed: %s",
                             self._node, refusal)  # fmt: skip
            return _Unenforced()
        raise _contended(self._node)

    def _attempt(self, present: dict[Key, Entry]) -> _Situation:
        """Claim the name with one compare-and-swap. Raise Conflict or NotFound if the claim has changed since it was read."""
        claim, fence = present.get(NodeClaimKey(self._node)), present.get(NodeFenceKey(self._node))
        if claim is None:
            return self._take(Create(NodeClaimKey(self._node), NodeClaim(self._claimant)), fence)
        value: NodeClaim = claim.value
        if value.claimant == self._claimant:
            if fence is None and self._backend.atomic:
                return self._take(Update(claim.key, value.renewed(), claim.revision), fence)
            return _Held(claim, fence)
        watched = self._watched(value)
        wants_name = watched.lost or time.monotonic() - self._asked < ASKED_SECONDS
        if (watched.alive and not wants_name) or time.monotonic() - watched.since < WATCH_SECONDS:
            return watched
        _log.warning("claim of node %r taken over from %s, which has stopped", self._node, value.claimant)
        successor = NodeClaim(self._claimant, predecessor=value.claimant, ended=int(time.time()))
        return self._take(Update(claim.key, successor, claim.revision), fence)

    def _take(self, write: Create | Update, fence: Entry[NodeFence] | None) -> _Held:
        writes: list[Write] = [write]
        if self._backend.atomic:
            key = NodeFenceKey(self._node)
            writes.append(Create(key, NodeFence()) if fence is None else Update(key, fence.value.advanced(), fence.revision))
        return _held(self._backend.write(writes))

    def _watched(self, value: NodeClaim) -> _Watched:
        before, now = self._situation, time.monotonic()
        if isinstance(before, _Held):
            return _Watched(value, now, alive=True, former=before.fence, lost=now)
        if not isinstance(before, _Watched):
            return _Watched(value, now)
        same = before.value.claimant == value.claimant
        if same and before.value.counter == value.counter:
            return before
        return replace(before, value=value, since=now, alive=same)

    def _enter(self, situation: _Situation) -> None:
        """Store the situation, end the waits if it is a decision, and start the thread if it is needed."""
        with self._lock:
            self._situation = situation
            ended, self._waits = ([], self._waits) if _is_open(situation) else (self._waits, [])
            needs_thread = self._renews or isinstance(situation, _Watched)
            if needs_thread and self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="node-claim", daemon=True)
                self._thread.start()
        for wait in ended:
            wait.end(WaitOutcome.READY)

    # the thread

    def _run(self) -> None:
        failing, began = False, time.monotonic()
        while not self._closed.wait(max(0.1, began + self._pause() - time.monotonic())):
            began = time.monotonic()
            try:
                self._step()
                failing = False
            except StoreError as failure:
                if not (failing or self._closed.is_set()):
                    _log.warning("the claim of node %r cannot be renewed, and is tried again: %s", self._node, failure)
                failing = True

    def _pause(self) -> float:
        match self._situation:
            case _Watched(alive=False):
                return POLL_SECONDS
            case _Unenforced():
                return RETRY_SECONDS
        return RENEW_SECONDS

    def _step(self) -> None:
        """Increment the counter of the own claim, or read the other claimant's."""
        situation = self._situation
        with deadline.limit(STEP_SECONDS):
            if not isinstance(situation, _Held):
                self._looks.run(None)
            elif self._renews:
                try:
                    self._renew(situation, fence=None)
                except (Conflict, NotFound, Forbidden):
                    self._looks.run(None)

    def _renew(self, held: _Held, *, fence: Entry[NodeFence] | None) -> None:
        writes: list[Write] = [Update(held.claim.key, held.claim.value.renewed(), held.claim.revision)]
        if fence is not None:
            writes.append(Update(fence.key, fence.value.advanced(), fence.revision))
        renewed = _held(self._backend.write(writes))
        with self._lock:
            if self._situation is held:
                self._situation = _Held(renewed.claim, renewed.fence or held.fence)

    # errors

    def _is_elsewhere(self, claimant: Claimant) -> bool:
        return (claimant.machine, claimant.state_dir) != (self._claimant.machine, self._claimant.state_dir)

    def _error(self, situation: _Watched) -> PeerError:
        other = situation.value.claimant
        if situation.alive:
            return PeerError(
                f"node name {self._node!r} is in use by another machine",
                details=f"{other} has claimed it and is alive; this is {self._claimant}: give one of the two another name "
                "(nodename in the network configuration, or the host name), or stop its agent",
                code=Code.NODE_CLAIMED,
            )
        return PeerError(
            f"node name {self._node!r} was claimed by another machine, and it is not known yet whether that one is alive",
            details=f"{other} has claimed it; this is {self._claimant}: try again in {WATCH_SECONDS:.0f} s",
            code=Code.TRY_AGAIN,
        )


def _is_open(situation: _Situation | None) -> bool:
    return isinstance(situation, _Watched) and not situation.alive


def _held(entries: Sequence[Entry | None]) -> _Held:
    claim, *fences = entries
    assert claim is not None
    return _Held(claim, fences[0] if fences else None)


def _contended(node: str) -> StoreError:
    return StoreError(
        f"the claim of node {node!r} cannot be read or keeps changing",
        details="try again; if it goes on, delete the claim (README, One machine per node name)",
    )
