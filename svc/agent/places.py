"""Check the socket, the directories and the journal of the agent, and restore what another program removed or replaced."""

import logging
from collections.abc import Callable
from pathlib import Path

from svc.agent.listener import Listener
from svc.attach.journal import Journal
from svc.cni.locks import SocketLock, StateLock
from svc.model.errors import Code, PeerError, SvcError

log = logging.getLogger("svc.agent")


class State:
    """The state directory that the agent has locked."""

    def __init__(self, directory: Path, lock: StateLock) -> None:
        self._directory = directory
        self._lock = lock

    def require(self) -> None:
        """Raise PeerError if the directory was removed or replaced: the agent must not create a new one in its place."""
        if not self._lock.stands():
            raise PeerError(
                f"state directory {str(self._directory)!r} was removed or replaced while the agent ran",
                details="start the agent again",
                code=Code.IO_FAILURE,
            )


class Places:
    """Socket, state directory and journal of the agent. `check` restores what can be restored; `end` stops the agent with a
    reason.

    Without its own state directory the agent must end. Otherwise one-shot processes and the next agent would use another
    directory in parallel.
    """

    def __init__(self, state: State, journal: Journal, socket: "Socket", end: Callable[[str], None]) -> None:
        self._state, self._journal, self._socket, self._end = state, journal, socket, end
        self._told = ""

    def check(self) -> None:
        """Check all places. A failure is logged once and retried at the next call."""
        try:
            self._state.require()
        except PeerError as loss:
            self._end(loss.msg)
            return
        failures = []
        for restore in (self._journal.restore_file, self._restore_socket):
            try:
                restore()
            except (SvcError, OSError) as failure:
                failures.append(str(failure))
        told = "; ".join(failures)
        if told and told != self._told:
            log.error("%s; the agent tries again every second", told)
        self._told = told

    def _restore_socket(self) -> None:
        try:
            self._socket.restore()
        except SvcError as refusal:  # another agent listens in its place
            self._end(str(refusal))


class Socket:
    """The agent's socket in the run directory."""

    def __init__(self, path: Path, lock: SocketLock, listener: Listener) -> None:
        self._path, self._lock, self._listener = path, lock, listener

    def restore(self) -> None:
        """Bind the path again if it was removed or replaced.

        Raise CallerError if another agent runs there, OSError if the path is unusable.
        """
        if self._listener.stands() and self._lock.stands():
            return
        if self._path.is_dir():
            raise OSError(f"{str(self._path)!r} is a directory, and no call reaches the agent: remove it")
        log.warning("%s was removed or replaced: the agent binds it again", self._path)
        self._lock.take()
        self._listener.bind()
