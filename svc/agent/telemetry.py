"""Metrics and traces of the agent. Modules that only they need are imported if they are enabled."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from svc.agent.periodic import Task
from svc.agent.queue import AdmissionQueue, Job
from svc.attach.context import Context
from svc.metrics import Metrics, Sample

if TYPE_CHECKING:
    from svc.agent.gauges import Gauges
    from svc.agent.metrics_server import Address, MetricsServer
    from svc.agent.pool_usage import PoolUsage
    from svc.agent.tracing import Tracer


class Telemetry:
    """Metrics of one agent, and the tracer of its calls: None unless traces are enabled."""

    def __init__(self, context: Context, queue: AdmissionQueue, put: Callable[[Job], None]) -> None:
        self.tracer: Tracer | None = None
        self._context = context
        self._queue = queue
        self._put = put
        self._usage: PoolUsage | None = None
        self._gauges: Gauges | None = None
        self._server: MetricsServer | None = None
        self._lock = threading.Lock()
        context.metrics.collectors.append(self._samples)

    def listen(self, stack: ExitStack, address: "Address") -> None:
        """Listen on one more address for readers of metrics. Raise OSError. The server ends with the stack."""
        if self._server is None:
            from svc.agent.exposition import exposition
            from svc.agent.gauges import Gauges
            from svc.agent.metrics_server import MetricsServer
            from svc.agent.pool_usage import PoolUsage

            metrics: Metrics = self._context.metrics
            self._usage = PoolUsage(self._context.sessions, self._put)
            self._gauges = Gauges(self._context, self._queue, (self._usage.samples,))
            self._server = MetricsServer(lambda: exposition(metrics))
            stack.callback(self._server.close)
        self._server.listen(address)

    def trace_to(self, stack: ExitStack, target: str) -> None:
        """Trace calls to a file or a URL. Raise OSError if the file cannot be opened. The tracer ends with the stack."""
        from svc.agent.tracing import Tracer

        self.tracer = Tracer(target, lambda number: self._context.metrics.count("traces_dropped_total", number))
        stack.callback(self.tracer.close)

    def start(self) -> None:
        """Serve the metrics, if they are enabled."""
        if self._server is not None:
            self._server.start()

    def tasks(self) -> Sequence[Task]:
        """Return the periodic tasks, after the first run of those that must not wait for their period."""
        if self._usage is None:
            return ()
        from svc.agent import pool_usage

        self._usage.refresh()
        return (Task("use of pools", pool_usage.LOOK_SECONDS, self._usage.refresh),)

    def _samples(self) -> Sequence[Sample]:
        """Return the gauges. Several threads may read metrics."""
        with self._lock:
            if self._gauges is None:
                from svc.agent.gauges import Gauges  # imported when metrics are first read

                self._gauges = Gauges(self._context, self._queue)
            return tuple(self._gauges.samples())
