"""The latest ended calls, for introspection. Their number and their size are bounded."""

from collections import deque
from typing import Final

from svc.call_trace import CallTrace
from svc.cni.call_io import Reply

MAX_CALLS: Final = 1000  # of containers
MAX_OTHERS: Final = 100
MAX_BYTES: Final = 4096  # of the log lines of one call
CUT: Final = b"(lines are left out here)\n"

EndedCall = tuple[bytes, tuple[str, ...]]
"""The log lines of a call, and its decisions."""


class EndedCalls:
    """The calls. They cost little: a call adds the lines that it has sent anyway.

    Calls without a container (GC, STATUS, VERSION) are kept apart, because a runtime may send them every few seconds.
    """

    def __init__(self) -> None:
        self._of_containers: deque[EndedCall] = deque(maxlen=MAX_CALLS)
        self._others: deque[EndedCall] = deque(maxlen=MAX_OTHERS)

    def add(self, trace: CallTrace, reply: Reply) -> None:
        ended = self._of_containers if "container" in trace.fields else self._others
        ended.append((_bounded(_lines(trace, reply)), tuple(trace.decisions)))

    def read(self) -> list[EndedCall]:
        """Return the calls, the latest of a container last."""
        return [*self._others.copy(), *self._of_containers.copy()]


def _lines(trace: CallTrace, reply: Reply) -> bytes:
    """Return the log lines, also with the outcome of a success if the log level of the network does not keep it."""
    if reply.status or trace.keeps_info:
        return reply.stderr
    outcome = "not finished here" if reply.intent else f"ok {trace.phases_text()}"
    return reply.stderr + trace.info_line(outcome).encode(errors="backslashreplace")


def _bounded(lines: bytes) -> bytes:
    """Leave out lines before the last one, which has the outcome, if there are too many."""
    if len(lines) <= MAX_BYTES:
        return lines
    last = lines[lines.rfind(b"\n", 0, -1) + 1 :][:MAX_BYTES]
    first = lines[: MAX_BYTES - len(last)]
    return first[: first.rfind(b"\n") + 1] + CUT + last
