"""The health of this process, noted in a file every few seconds.

The process is *live* while its threads work: none has ended, and none is stuck with one item. It is *ready* while the API
server and the datastore answer. Whether it leads does not matter.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from svc import deadline
from svc.attach.datastore_ready import KEY
from svc.controllers import health_file
from svc.controllers.configuration import Live
from svc.controllers.health_file import LIVE, READY
from svc.datastore.api import Backend, UndecodableEntry
from svc.model.errors import SvcError
from svc.private_directory import make_private

PERIOD_SECONDS = 5.0
LATE_SECONDS = 30.0  # after the last answer of a server, for READY
STUCK_SECONDS = 60.0  # after the last step of the election

_PROBE_SECONDS = 4.0

log = logging.getLogger("svc.controllers")


class Health:
    """The thread that notes the health. `troubles` returns what is wrong with the other threads.

    If `path` is empty, the file is the default one of the `program` of this name.
    """

    def __init__(self, path: str, program: str, live: Live, store: Backend, troubles: Callable[[], Iterable[str]]) -> None:
        self._path = Path(path) if path else health_file.default_path(program)
        self._is_default = not path
        self._live = live
        self._store = store
        self._troubles = troubles
        self._began = self._stepped = time.monotonic()
        self._answered: dict[str, float] = {}  # by server: when it answered last
        self._refusals: dict[str, str] = {}  # by server: why it has not answered since, as far as it is known
        self._failing = False
        self._stopping = threading.Event()
        self._changed = threading.Event()
        live.on_change(lambda _: self._changed.set())
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and remove the file."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def stepped(self, failure: SvcError | None) -> None:
        """Note a step of the election, and why the API server has not answered as it should."""
        self._stepped = time.monotonic()
        self._note_answer("the API server", failure)

    def problems(self) -> dict[str, list[str]]:
        """Return what is wrong, for each aspect."""
        now = time.monotonic()
        troubles = list(self._troubles())
        if now - self._stepped > STUCK_SECONDS:
            troubles.append(f"the election has been stuck for {now - self._stepped:.0f} s")
        late = []
        for server in ("the API server", "the datastore"):
            since = now - self._answered.get(server, self._began - LATE_SECONDS)
            if since > LATE_SECONDS:
                duration = f"for {since:.0f} s" if server in self._answered else "yet"
                reason = self._refusals.get(server)
                late.append(f"{server} has not answered {duration}" + (f": {reason}" if reason else ""))
        return {LIVE: troubles, READY: late}

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            is_enabled = self._live.now.serves_health
            if is_enabled:
                self._ask_datastore()
            self._note(is_enabled=is_enabled)
            self._changed.wait(PERIOD_SECONDS)

    def _ask_datastore(self) -> None:
        try:
            with deadline.limit(_PROBE_SECONDS), suppress(UndecodableEntry):
                self._store.find(KEY)
        except SvcError as failure:
            self._note_answer("the datastore", failure)
            return
        self._note_answer("the datastore", None)

    def _note_answer(self, server: str, failure: SvcError | None) -> None:
        if failure is None:
            self._answered[server] = time.monotonic()
            self._refusals.pop(server, None)
        else:
            self._refusals[server] = failure.msg

    def _note(self, *, is_enabled: bool) -> None:
        try:
            if self._is_default:
                make_private(self._path.parent, 0o700)  # its name can be guessed, and its parent is open to all
            health_file.write(self._path, enabled=is_enabled, problems=self.problems())
        except OSError as error:
            if not self._failing:
                problem = os.strerror(error.errno or 0)
                log.warning(
                    "HEALTH_FILE = %r cannot be written: %s: name one in a directory of this user", str(self._path), problem
                )
            self._failing = True
        else:
            self._failing = False
