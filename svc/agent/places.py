"""Check what the agent has on the disk: restore socket and files that another program removed, report a changed package."""

import logging
from collections.abc import Callable
from pathlib import Path

import svc
from svc.agent.listener import Listener
from svc.atomic_file import file_version
from svc.attach.context import Context
from svc.cni.locks import SocketLock, StateLock
from svc.model.errors import PeerError, SvcError

log = logging.getLogger("svc.agent")


class Places:
    """Socket at `path`, state directory, journal and embedded store of the agent. `end` stops the agent with a reason.

    Without its state directory it must end: one-shot processes and the next agent would use another one in parallel.
    """

    def __init__(
        self,
        state_lock: StateLock,
        context: Context,
        path: Path,
        socket_lock: SocketLock,
        listener: Listener,
        end: Callable[[str], None],
    ) -> None:
        self._state_lock, self._context, self._end = state_lock, context, end
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
        context = self._context
        for restore in (context.journal.restore_file, context.sessions.write_back, self._restore_socket):
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


class UpgradeCheck:
    """Comparison of the installed package with the running one. A change is logged once, counted, and noted in the context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running = svc.__version__
        self._started_with = self._seen = self._reported = file_version(svc.__file__)

    def run(self) -> None:
        """Check the disk. Read the version at the second check after a change, and then again: pip writes it last."""
        found, seen = file_version(svc.__file__), self._seen
        self._seen = found
        if found != seen or found == self._started_with:
            return
        self._report(svc.installed_version() if found else "none")
        if found != self._reported:
            self._reported = found
            self._context.metrics.count("package_changes_total")

    def _report(self, installed: str) -> None:
        reason = f"the agent runs version {self._running}, and version {installed} has been installed since: restart svc-agent"
        if reason != self._context.restart_reason:
            self._context.restart_reason = reason
            log.warning("%s", reason)
