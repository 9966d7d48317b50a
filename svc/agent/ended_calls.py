"""The latest ended calls, for introspection. Their number and their size are bounded.

A call is one object until it is read. Many small objects that live for some seconds, between those of later calls, would keep
memory of the allocator from being used for other sizes, or returned.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from svc.call_trace import CallTrace
from svc.cni.call_io import Reply

MAX_CALLS: Final = 1000  # of containers
MAX_OTHERS: Final = 100
MAX_BYTES: Final = 4096  # of the log lines of one call
CUT: Final = b"(lines are left out here)\n"

EndedCall = tuple[bytes, tuple[str, ...]]
"""The log lines of a call, and its decisions."""

_END: Final = b"\0"


class EndedCalls:
    """The calls. They cost little: a call adds the lines that it has sent anyway.

    Calls without a container (GC, STATUS, VERSION) are kept apart, because a runtime may send them every few seconds.
    """

    def __init__(self) -> None:
        self._of_containers: deque[bytes] = deque(maxlen=MAX_CALLS)
        self._others: deque[bytes] = deque(maxlen=MAX_OTHERS)

    def add(self, trace: CallTrace, reply: Reply) -> None:
        ended = self._of_containers if "container" in trace.fields else self._others
        ended.append(_packed(_bounded(_lines(trace, reply)), trace.decisions))

    def read(self) -> Iterator[EndedCall]:
        """Yield the calls, the latest of a container last."""
        return map(_unpacked, [*self._others.copy(), *self._of_containers.copy()])


def _packed(lines: bytes, decisions: Sequence[str]) -> bytes:
    """Return the length of the lines, the lines, and the decisions, each with an end."""
    texts = [text.encode(errors="backslashreplace") + _END for text in decisions]
    return b"".join([b"%d" % len(lines), _END, lines, *texts])


def _unpacked(call: bytes) -> EndedCall:
    length, _, rest = call.partition(_END)
    lines, texts = rest[: int(length)], rest[int(length) :]
    return lines, tuple([text.decode() for text in texts.split(_END)[:-1]])


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
