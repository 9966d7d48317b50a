"""Signs of life: to clients whose calls take long, and to the service manager's watchdog.

Both are sent only while the agent can do its work. The proof is a job that does nothing: the listener must wake
a worker, which takes the job from the queue. A draining agent has no idle worker, so it sends signs until the drain ends.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from svc.agent.lanes import Lane
from svc.agent.periodic import Periodic, Task
from svc.agent.queue import Job
from svc.cni.frame import pack_alive

TICK_SECONDS = 1.0
FIRST_SECONDS = 0.5  # from a request to the first sign, besides a tick: without it a DEL is spooled after 2 s
SIGN_SECONDS = 2.0  # from one sign to the next
PROOF_SECONDS = 4.0  # a proof is valid this long; the executable gives up after 5 s without a sign


class Heartbeat:
    """Sender of signs of life, on one thread, from `start` to `stop`.

    `poll` reads requests that no worker has read yet. `put` takes the job that proves progress. `is_busy` tells whether all
    workers are occupied and make progress: that job would wait then. `watchdog_seconds` is the service manager's timeout, or 0.
    """

    def __init__(
        self, poll: Callable[[], None], put: Callable[[Job], None], is_busy: Callable[[], bool], watchdog_seconds: float = 0.0
    ) -> None:
        self._poll, self._put, self._is_busy = poll, put, is_busy
        self._watchdog_seconds = watchdog_seconds / 2
        tick_seconds = min(TICK_SECONDS, watchdog_seconds / 4 or TICK_SECONDS)
        self._thread = Periodic([Task("heartbeat", tick_seconds, self._tick)], name="heartbeat")
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, float] = {}  # when the next sign is due
        self._watchdog_due = 0.0
        self._proved = time.monotonic()
        self._is_proving = False
        self._is_draining = False

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Send signs without a proof from now on: idle workers end. The caller bounds the time until `stop`."""
        self._is_draining = True

    def stop(self) -> None:
        """End the thread, and return when no sign is sent any more."""
        self._thread.stop()

    def add(self, connection: socket.socket) -> None:
        """Send signs to this client until `remove`."""
        with self._lock:
            self._clients[connection] = time.monotonic() + FIRST_SECONDS

    def remove(self, connection: socket.socket) -> None:
        """Send no further sign to this client after the return. A client that was never added is not an error."""
        with self._lock:
            self._clients.pop(connection, None)

    def _tick(self) -> None:
        self._poll()
        now = time.monotonic()
        if self._is_draining or now - self._proved < PROOF_SECONDS or self._is_busy():
            self._sign(now)
            if self._watchdog_seconds and now >= self._watchdog_due:
                self._watchdog_due = now + self._watchdog_seconds
                notify("WATCHDOG=1")
        if (self._clients or self._watchdog_seconds) and not (self._is_proving or self._is_draining):
            self._is_proving = True
            self._put(Job(Lane("proof"), "", self._prove))

    def _prove(self, _job: Job) -> None:
        self._proved = time.monotonic()
        self._is_proving = False
        self._sign(self._proved)  # at the next tick the first sign may come too late

    def _sign(self, now: float) -> None:
        with self._lock:
            for connection in [each for each, due in self._clients.items() if due <= now]:
                self._clients[connection] = now + SIGN_SECONDS
                with suppress(OSError):  # the client does not read, or has disconnected
                    connection.send(pack_alive(), socket.MSG_DONTWAIT)


def notify(state: str) -> None:
    """Send the state to systemd by sd_notify(3), if systemd requests it. A failure is not an error."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel, suppress(OSError):
        channel.sendto(state.encode(), address)


def watchdog_seconds() -> float:
    """Return the time within which systemd expects WATCHDOG=1, or 0 if it does not watch this process."""
    pid, microseconds = os.environ.get("WATCHDOG_PID", ""), os.environ.get("WATCHDOG_USEC", "")
    if pid not in ("", str(os.getpid())) or not microseconds.isdecimal():
        return 0.0
    return int(microseconds) / 1e6
