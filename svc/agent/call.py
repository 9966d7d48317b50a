"""A call in the agent: a job of the admission queue that runs again after each wait."""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from svc.agent.queue import CANCELLING_LANE, Job
from svc.call_trace import CallTrace, new_request_id
from svc.cni.call_io import CallInput, Reply
from svc.cni.frame import pack_handover, pack_reply, pack_timeout_extension
from svc.metrics import Metrics
from svc.waits.wait import Resumable, Wait

if TYPE_CHECKING:
    from svc.agent.tracing import Tracer

EXPECTED_SECONDS = 90.0  # the executable waits as long for the reply to an ADD, unless the agent extends the time
WORK_SECONDS = 30.0  # the part of it for the work of an ADD without its waits
REPLY_SECONDS = 5.0  # limit for a client to read its reply

log = logging.getLogger("svc.agent")


class AgentCall:
    """A request and its connection, which the reply closes. `answer` serves it; no frame may follow `before_reply`.

    `remember` is called after the reply was sent.
    """

    def __init__(
        self,
        connection: socket.socket,
        inputs: CallInput,
        answer: Callable[[CallInput, CallTrace], Resumable[Reply]],
        metrics: Metrics,
        before_reply: Callable[[], None],
        remember: Callable[[CallTrace, Reply], None],
        tracer: "Tracer | None" = None,
    ) -> None:
        self.connection = connection
        self._before_reply = before_reply
        self._remember = remember
        self._inputs = inputs
        self._answer = answer
        self._metrics = metrics
        self.trace = CallTrace(new_request_id())
        self.tracer = tracer
        if tracer is not None:
            self.trace.spans = []
        self._steps: Resumable[Reply] | None = None
        self._arrived = 0.0  # when the request arrived (`time.perf_counter`)
        self._waits_until = 0.0  # deadline of the last wait (monotonic clock)
        self._expected = 0.0  # when the client expects the reply (monotonic clock)

    def run(self, job: Job) -> Wait | None:
        """Run the call until it waits or ends. Return its wait, or None at its end."""
        try:
            if self._steps is None and not self._begin(job):
                self._end(None)
                return None
            assert self._steps is not None
            return self._extend_timeout(next(self._steps))
        except StopIteration as end:
            self._end(end.value)
            return None
        except BaseException:
            self._end(None)
            raise

    def _begin(self, job: Job) -> bool:
        """Start the call. Return False if its client has disconnected."""
        if job.lane.name != CANCELLING_LANE and _is_disconnected(self.connection):
            self._inputs.close()
            return False
        waited = self.trace.phases["queue"] = job.waited()
        self._arrived = job.arrived
        self._metrics.queued(waited / 1000)
        self._expected = time.monotonic() - waited / 1000 + EXPECTED_SECONDS
        self._steps = self._answer(self._inputs, self.trace)
        return True

    def _extend_timeout(self, wait: Wait) -> Wait:
        """Tell the client of a wait that is longer than its timeout."""
        self._waits_until = wait.deadline
        until = wait.deadline + WORK_SECONDS
        if until > self._expected:
            self._expected = until
            with suppress(OSError):  # the client has disconnected, which ends the wait
                self.connection.sendall(pack_timeout_extension(until - time.monotonic(), self._inputs.protocol))
        return wait

    def _end(self, reply: Reply | None) -> None:
        self._before_reply()
        if self.tracer is not None and reply is not None and not reply.intent:
            self.tracer.add(self.trace, reply.status, self._arrived)
        with self.connection:
            if reply is not None:
                self._send(reply)

    def _send(self, reply: Reply) -> None:
        if reply.status:
            level, text = self.trace.messages[-1]
            log.log(level, "%s", text)
        if reply.intent:
            left = max(0.0, self._waits_until - time.monotonic())
            frame = pack_handover(str(reply.intent).encode(), left / 2)  # the rest is for the wait itself
        else:
            frame = pack_reply(reply.status, reply.stdout, reply.stderr, self._inputs.protocol)
        self.connection.settimeout(REPLY_SECONDS)
        try:
            self.connection.sendall(frame)
        except OSError as failure:
            log.warning("[%s] the client did not take its reply: %s", self.trace.request_id, failure)
        self._remember(self.trace, reply)


def _is_disconnected(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
