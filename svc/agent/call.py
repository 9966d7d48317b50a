"""One request on its way through the agent: a job of the queue, which is run again after every wait."""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from svc.agent.queue import HURRIES, Job
from svc.cni.frame import PROTOCOL, pack_handover, pack_patience, pack_reply
from svc.cni.inputs import Inputs, Reply
from svc.metrics import Metrics
from svc.trace import Trace, new_request_id
from svc.waits.wait import Steps, Wait

USUAL_SECONDS = 90.0  # within which the executable expects the reply to an ADD, unless it is told otherwise
WORK_SECONDS = 30.0  # of these, for what an ADD does besides waiting
REPLY_SECONDS = 5.0  # a client that does not take its reply by then has gone

log = logging.getLogger("svc.agent")


class Call:
    """`answer` carries out what the inputs ask for; the connection is closed with the reply, in the layout `protocol`.

    `before_reply` is called when nothing but the reply is to be sent any more.
    """

    def __init__(
        self,
        connection: socket.socket,
        inputs: Inputs,
        answer: Callable[[Inputs, Trace], Steps[Reply]],
        metrics: Metrics,
        before_reply: Callable[[], None],
        protocol: int = PROTOCOL,
    ) -> None:
        self.connection = connection
        self._before_reply = before_reply
        self._protocol = protocol
        self._inputs = inputs
        self._answer = answer
        self._metrics = metrics
        self._trace = Trace(new_request_id())
        self._steps: Steps[Reply] | None = None
        self._waits_until = 0.0  # of the last wait, of the monotonic clock
        self._expected = 0.0  # by when, of the monotonic clock, the client expects the reply

    def run(self, job: Job) -> Wait | None:
        """What it waits for; None when it is done."""
        try:
            if self._steps is None and not self._begin(job):
                self._end(None)
                return None
            assert self._steps is not None
            return self._announced(next(self._steps))
        except StopIteration as end:
            self._end(end.value)
            return None
        except BaseException:
            self._end(None)
            raise

    def _begin(self, job: Job) -> bool:
        """Not where nobody would learn of the result."""
        if job.lane.name != HURRIES and _hung_up(self.connection):
            self._inputs.close()
            return False
        waited = self._trace.phases["queue"] = job.waited()
        self._metrics.count("queue_seconds_sum", waited / 1000)
        self._metrics.count("queue_seconds_count")
        self._expected = time.monotonic() - waited / 1000 + USUAL_SECONDS
        self._steps = self._answer(self._inputs, self._trace)
        return True

    def _announced(self, wait: Wait) -> Wait:
        """The client learns of a wait that it would not sit out."""
        self._waits_until = wait.deadline
        until = wait.deadline + WORK_SECONDS
        if until > self._expected:
            self._expected = until
            with suppress(OSError):  # it has gone: whoever minds the wait sees that
                self.connection.sendall(pack_patience(until - time.monotonic(), self._protocol))
        return wait

    def _end(self, reply: Reply | None) -> None:
        self._before_reply()
        with self.connection:
            if reply is not None:
                self._send(reply)

    def _send(self, reply: Reply) -> None:
        if reply.status:
            level, text = self._trace.messages[-1]
            log.log(level, "%s", text)
        self.connection.settimeout(REPLY_SECONDS)
        try:
            self.connection.sendall(self._packed(reply))
        except OSError as failure:
            log.warning("[%s] the client did not take its reply: %s", self._trace.request_id, failure)

    def _packed(self, reply: Reply) -> bytes:
        if reply.intent:
            left = max(0.0, self._waits_until - time.monotonic())
            return pack_handover(str(reply.intent).encode(), left / 2)  # the rest is for the wait itself
        return pack_reply(reply.status, reply.stdout, reply.stderr, self._protocol)


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
