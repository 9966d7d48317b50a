"""Check the socket, the directories and the journal of the agent, and restore what another program removed or replaced."""

import logging
from collections.abc import Callable
from pathlib import Path

from svc.agent.listener import Listener
from svc.attach.journal import Journal
from svc.cni.locks import SocketLock, StateLock
from svc.model.errors import PeerError, SvcError

log = logging.getLogger("svc.agent")


class Places:
    """Socket at `path`, state directory and journal of the agent. `end` stops the agent with a reason.

    Without its state directory it must end: one-shot processes and the next agent would use another one in parallel.
    """

    def __init__(
        self,
        state_lock: StateLock,
        journal: Journal,
        path: Path,
        socket_lock: SocketLock,
        listener: Listener,
        end: Callable[[str], None],
    ) -> None:
        self._state_lock, self._journal, self._end = state_lock, journal, end
        self._path, self._socket_lock, self._listener = path, socket_lock, listener
        self._reported = ""

    def check(self) -> None:
        """Check all places, and restore what can be restored. A failure is logged once and retried at the next call."""
        try:
            self._state_lock.require()
        except PeerError as loss:
            self._end(loss.msg)
            return
        failures = []
        for restore in (self._journal.restore_file, self._restore_socket):
            try:
                restore()
            except (SvcError, OSError) as failure:
                failures.append(str(failure))
        text = "; ".join(failures)
        if text and text != self._reported:
            log.error("%s; the agent tries again every second", text)
        self._reported = text

    def _restore_socket(self) -> None:
        """Bind the path again if it was removed or replaced. End the agent if another one listens there. Raise OSError."""
        if self._listener.stands() and self._socket_lock.stands():
            return
        if self._path.is_dir():
            raise OSError(f"{str(self._path)!r} is a directory, and no call reaches the agent: remove it")
        log.warning("%s was removed or replaced: the agent binds it again", self._path)
        try:
            self._socket_lock.take()
        except SvcError as refusal:
            self._end(str(refusal))
            return
        self._listener.bind()
