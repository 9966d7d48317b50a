"""What the process serves over HTTP, as the configuration in force has it: metrics, and the stacks of its threads."""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress

from svc.controllers.conditions import FALSE, TRUE, Condition, Conditions
from svc.controllers.configuration import Live
from svc.metrics.server import TextServer
from svc.model.controllers_configuration import DEBUG_PORT, METRICS_PORT

SERVED = "PortsServed"  # the kind of the condition
METRICS, STACKS = "/metrics", "/stacks"

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  Prometheus reads it from other machines
_LOOPBACK = ("127.0.0.1",)

log = logging.getLogger("svc.controllers")


class _Port:
    """One server: the field with its port, and where it listens. One thread uses it."""

    def __init__(self, field: str, hosts: tuple[str, ...], path: str, write: Callable[[], str]) -> None:
        self._field = field
        self._hosts = hosts
        self._path = path
        self._write = write
        self._server: TextServer | None = None
        self._port = 0
        self.problem = ""

    def serve(self, port: int) -> None:
        """Serve on a port, or on none if it is 0. If that fails, set `problem`; the next call tries again."""
        if port == self._port and not self.problem:
            return
        self.close()
        earlier, self.problem, self._port = self.problem, "", port
        if not port:
            return
        server = TextServer(self._write, self._path, self._path.removeprefix("/"))
        try:
            self._listen(server, port)
        except OSError as error:
            server.close()
            reason = os.strerror(error.errno or 0)
            self.problem = f"spec.{self._field} = {port} cannot be served: {reason}: give a port that is free"
            if self.problem != earlier:  # the next attempts follow every few seconds
                log.warning("%s", self.problem)
            return
        server.start()
        self._server = server
        log.info("%s is served on port %d", self._path, port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            log.info("%s is not served on port %d any more", self._path, self._port)
        self._server = None

    def _listen(self, server: TextServer, port: int) -> None:
        """Listen on each host. A machine without IPv6 has the first one only."""
        first, *others = self._hosts
        server.listen_on(first, port)
        for host in others:
            with suppress(OSError):
                server.listen_on(host, port)


class Serving:
    """The servers of one process. One thread calls `step` again and again, then `close`."""

    def __init__(self, live: Live, conditions: Conditions, metrics: Callable[[], str]) -> None:
        self._live = live
        self._conditions = conditions
        conditions.await_judgement(SERVED)
        self._metrics = _Port(METRICS_PORT, _EVERYWHERE, METRICS, metrics)
        self._stacks = _Port(DEBUG_PORT, _LOOPBACK, STACKS, stacks)

    def step(self) -> None:
        """Begin and end servers, so that they are those of the configuration. Report those that fail."""
        self._metrics.serve(self._live.now.metrics_port)
        self._stacks.serve(self._live.now.debug_port)
        problems = [port.problem for port in (self._metrics, self._stacks) if port.problem]
        message = "; ".join(problems) or "Each port of the configuration is served."
        status, reason = (FALSE, "PortUnavailable") if problems else (TRUE, "Served")
        self._conditions.set(Condition(SERVED, status, reason, message))

    def close(self) -> None:
        self._metrics.close()
        self._stacks.close()


def stacks() -> str:
    """Return the stack of each thread as text."""
    return "\n".join(_stacks())


def _stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sorted(sys._current_frames().items()):
        yield f"thread {names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(frame))}"
