"""Measure what served metrics cost: an agent whose metrics are read twice a second, against one that serves none.

`python -m bench.metrics_cost`. The repetitions and the ratios are those of `bench.against`. Before them come the times of what
runs in each call, in this process, and the processor time that the agent needs for a scrape. `--traces` compares an agent that
traces to a file instead.
"""

import argparse
import os
import socket
import sys
import threading
import time
import timeit
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.against import compare, cpu_ms
from bench.options import AT_ONCE
from bench.testbed import Stage
from harness.node import Node
from svc.metrics import GET, WRITE, Metrics, StoreMeter

SCRAPE_SECONDS = 0.5
PHASES = {"queue": 0.1, "journal": 0.2, "ipam": 0.5, "kernel": 0.8}  # of an ADD on the embedded store
READS, WRITES = 4, 1  # requests of such an ADD
POOLS, ATTACHMENTS, SCRAPES = 20, 48, 500  # of the node whose scrapes are measured


class ServedNode(Node):
    """A node whose agent serves metrics."""

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.sock"

    def start_agent(self, *program: str, **options: Any) -> None:
        super().start_agent(*program, **{**options, "options": ("--metrics", f"unix:{self.metrics}")})


class ScrapedNode(ServedNode):
    """A node whose metrics a thread reads."""

    def start_agent(self, *program: str, **options: Any) -> None:
        super().start_agent(*program, **options)
        self._stopping = threading.Event()
        self._scraper = threading.Thread(target=self._scrape, args=(self.metrics,))
        self._scraper.start()

    def close(self) -> None:
        if hasattr(self, "_scraper"):
            self._stopping.set()
            self._scraper.join()
        super().close()

    def _scrape(self, path: Path) -> None:
        while not self._stopping.wait(SCRAPE_SECONDS):
            with suppress(OSError):
                scrape(path)


class TracedNode(Node):
    """A node whose agent traces calls to a file."""

    def start_agent(self, *program: str, **options: Any) -> None:
        super().start_agent(*program, **{**options, "options": ("--traces", str(self.directory / "traces.json"))})


def scrape(path: Path) -> bytes:
    """Return the answer of a metrics server."""
    data = b""
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(5)
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        while part := client.recv(1 << 16):
            data += part
    return data


def an_add(metrics: Metrics, meter: StoreMeter) -> None:
    """Count what an ADD on the embedded store counts."""
    metrics.queued(0.0001)
    for _ in range(READS):
        meter.ended(GET, perf_counter())
    for _ in range(WRITES):
        meter.ended(WRITE, perf_counter())
    meter.batch(1)
    metrics.call_ended("ADD", 0, 0.002, PHASES)


def an_add_before(metrics: Metrics) -> None:
    """Count what an ADD counted when there were five counters: with a lock and formatted labels for each."""
    metrics.count("queue_seconds_sum", 0.0001)
    metrics.count("queue_seconds_count")
    metrics.count("calls_total", verb="ADD", outcome="ok")


def microseconds(work: Callable[[], object], number: int) -> float:
    """Return the time of one run: the least of several series, which others have disturbed least."""
    return min(timeit.repeat(work, number=number, repeat=20)) / number * 1e6


def print_parts() -> None:
    """Print the times of what runs in a call."""
    before, metrics, meter = Metrics(), Metrics(), StoreMeter()
    metrics.add_store("embedded", metrics, meter)
    print(f"in an ADD, before        {microseconds(lambda: an_add_before(before), 2000):.2f} us")
    print(f"in an ADD                {microseconds(lambda: an_add(metrics, meter), 2000):.2f} us")


def print_scrape() -> None:
    """Print the processor time of an agent for a scrape, and the share of a processor for two scrapes a second."""
    with Stage.open(ServedNode) as stage:
        node = stage.node
        assert isinstance(node, ServedNode)
        for number in range(POOLS - 2):
            node.apply_pool(f"more{number}", f"10.99.{number}.0/24")
        stage.execute_all(stage.svc_plugin(), "ADD", stage.pods(ATTACHMENTS), AT_ONCE)
        while f'pool="more{POOLS - 3}"'.encode() not in scrape(node.metrics):  # until the agent has read the pools
            time.sleep(0.1)
        series = sum(line.startswith((b"svc_", b"process_")) for line in scrape(node.metrics).splitlines())
        before = cpu_ms(stage)
        for _ in range(SCRAPES):
            scrape(node.metrics)
        each = (cpu_ms(stage) - before) / SCRAPES
    print(f"scrape of {series} series     {each:.2f} ms, {each / 1000 / SCRAPE_SECONDS:.2%} of a processor at two in a second")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=20, metavar="N")
    parser.add_argument("--traces", action="store_true", help="compare an agent that traces calls to a file")
    options = parser.parse_args()
    if os.geteuid():
        parser.error("it makes network namespaces: run it as root")
    print_parts()
    print_scrape()
    other, words = (TracedNode, "an agent with traces") if options.traces else (ScrapedNode, "an agent with metrics")
    compare((Node, other), options.repetitions, f"ratios of {words} to one without")
    return 0


if __name__ == "__main__":
    sys.exit(main())
