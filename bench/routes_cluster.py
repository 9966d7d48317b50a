"""svc-routes on a node of a cluster with 1,000 nodes and 4,000 blocks, on each datastore: start, memory, rest and changes."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path

from bench.measurement import Figure, Goal, Sample, at_most
from bench.memory import rss_mib
from bench.options import Options
from bench.routes_process import RoutesProcess
from bench.routes_site import (
    BLOCKS,
    BLOCKS_OF_NODE,
    OWN,
    SITES,
    Document,
    RoutedSite,
    RouteMonitor,
    affinity,
    block,
    folder,
    network,
    routed_node,
)
from bench.testbed import Failed
from harness.netns import run as run_program
from svc.datastore.open import open_backend
from svc.names import DEFAULT
from svc.routes.kernel_part import KernelPart
from svc.routes.program import Program
from svc.routes.settings import Settings
from svc.routes.telemetry import Telemetry

STARTS, COMPARISONS, CHANGES = 5, 10, 60
REST_SECONDS = 60.0
SETTLE_SECONDS = 3.0
CHURN = 100  # changes of blocks a second
PAUSE = 0.17  # between changes whose way to the kernel is measured; no multiple of a batch
LATE_SECONDS = 10.0


def run(options: Options) -> Iterator[Figure]:
    for kind, opened in SITES.items():
        with ExitStack() as stack:
            place = stack.enter_context(folder())
            stack.enter_context(routed_node())
            site = stack.enter_context(opened(place))
            yield from _Measured(kind, site, place, options).figures()


class _Measured:
    def __init__(self, kind: str, site: RoutedSite, place: Path, options: Options) -> None:
        self._kind = kind
        self._site = site
        self._place = place
        self._rounds = STARTS if options.rounds >= 60 else 2

    def figures(self) -> Iterator[Figure]:
        yield from self._starts()
        yield self._comparison()
        with self._process(awaited=False) as (process, monitor):
            process.await_settled()
            yield self._figure("rss", "MiB", [rss_mib(process.pid)], at_most(60), f"peak {rss_mib(process.pid, 'VmHWM'):.0f}")
            yield self._rest(process)
            yield self._changes(monitor, "change", "")
            with self._churn():
                yield self._changes(monitor, "change_amid_blocks", f"{CHURN} changes of allocations a second")
            with self._claims():
                yield self._changes(monitor, "change_amid_claims", f"{CHURN} claims and releases a second")
        self._site.set_pools(vxlanMode="Always")
        with self._process("TUNNEL") as (process, _):
            process.await_settled()
            peak = rss_mib(process.pid, "VmHWM")
            yield self._figure("rss_tunnels", "MiB", [rss_mib(process.pid)], at_most(80), f"peak {peak:.0f}")
        self._site.set_pools()

    def _starts(self) -> Iterator[Figure]:
        seconds, processor = [], []
        for _ in range(self._rounds):
            with self._process(awaited=False) as (process, monitor):
                last = monitor.await_routes(BLOCKS)
                processor.append(process.cpu_seconds())
                seconds.append(last - process.began)
            run_program("ip", "route", "flush", "proto", str(DEFAULT.route_protocol))
        yield self._figure("start", "s", seconds, at_most(2), "until the kernel has all routes")
        yield self._figure("start_cpu", "s", processor, at_most(0.5), "processor time of svc-routes until then")

    def _comparison(self) -> Figure:
        """Compare with the kernel inside this process, which tells the time of the comparison alone."""
        settings = self._site.settings
        with closing(open_backend(settings, Path(), DEFAULT)) as store, closing(KernelPart(DEFAULT)) as kernel:
            telemetry = Telemetry(self._kind, store.meter)
            program = Program(Settings(settings, OWN, mode="on", state_dir=self._place), store, kernel, telemetry)
            program._copies.start()
            program._copies.read_blocks()
            try:
                _await(lambda: program._copies.is_complete)
                program.step()
                seconds = [_timed(lambda: _compare(program)) for _ in range(COMPARISONS)]
            finally:
                program._close()
        return self._figure("comparison", "ms", [1000 * each for each in seconds], at_most(150))

    def _rest(self, process: RoutesProcess) -> Figure:
        used, began = process.cpu_seconds(), time.monotonic()
        time.sleep(REST_SECONDS)
        share = 100 * (process.cpu_seconds() - used) / (time.monotonic() - began)
        return self._figure("rest", "% of a processor", [share], at_most(0.5), "with one full comparison")

    def _changes(self, monitor: RouteMonitor, name: str, note: str) -> Figure:
        """Claim blocks one after the other. The worst is part of the note, and the run fails if it is too late."""
        milliseconds = []
        with self._site.writer() as writer:
            for number in range(BLOCKS, BLOCKS + CHANGES):
                document = affinity(number - CHANGES, network(number))  # of a node that exists
                key = (network(number).first.packed, network(number).length)
                began = time.monotonic()
                writer.put(document)
                _await(lambda key=key: key in monitor.added, LATE_SECONDS)  # type: ignore[misc]
                milliseconds.append(1000 * (monitor.added[key] - began))
                writer.delete(document)
                _await(lambda key=key: key not in monitor.added, LATE_SECONDS)  # type: ignore[misc]
                time.sleep(PAUSE)
        yield_note = f"{note}; worst {max(milliseconds):.0f} ms".removeprefix("; ")
        if max(milliseconds) > 1000:
            yield_note = f"WORST IS OVER 1 s: {yield_note}"
        return self._figure(name, "ms", milliseconds, at_most(200), yield_note)

    @contextmanager
    def _churn(self) -> Iterator[None]:
        """Change allocations in blocks of other nodes. Without strict affinity the blocks are watched."""
        self._site.set_strict(strict=False)

        def documents() -> Iterator[tuple[Document, bool]]:
            for number in count(BLOCKS_OF_NODE):
                yield block(number % (BLOCKS - 100), 1 + number % 9), True

        time.sleep(SETTLE_SECONDS)
        with self._writing(documents()):
            yield
        self._site.set_strict(strict=True)

    @contextmanager
    def _claims(self) -> Iterator[None]:
        """Have other nodes claim blocks, and release them."""

        def documents() -> Iterator[tuple[Document, bool]]:
            for number in count():
                claimed = affinity(500, network(BLOCKS + 1000 + number // 2 % 1000))
                yield claimed, number % 2 == 0

        with self._writing(documents()):
            yield

    @contextmanager
    def _writing(self, documents: Iterator[tuple[Document, bool]]) -> Iterator[None]:
        """Put or delete documents in a thread, CHURN a second."""
        is_over = False

        def work() -> int:
            began = time.monotonic()
            with self._site.writer() as writer:
                for number, (document, is_put) in enumerate(documents):
                    if is_over:
                        return number
                    (writer.put if is_put else writer.delete)(document)
                    time.sleep(max(0.0, began + number / CHURN - time.monotonic()))
            return 0

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            began = time.monotonic()
            try:
                yield
            finally:
                seconds, is_over = time.monotonic() - began, True
            if future.result() < 0.8 * CHURN * seconds:
                raise Failed(f"the datastore took only {future.result() / seconds:.0f} changes a second")

    @contextmanager
    def _process(self, reason: str = "DIRECT", *, awaited: bool = True) -> Iterator[tuple[RoutesProcess, RouteMonitor]]:
        with closing(RouteMonitor()) as monitor:
            process = RoutesProcess(self._place, self._site.site)
            try:
                if awaited:
                    process.await_reasons(reason, "OWN")
                yield process, monitor
            finally:
                process.end()

    def _figure(self, name: str, unit: str, values: list[float], goal: Goal, note: str = "") -> Figure:
        return Figure(f"routes_{self._kind}_{name}", unit, Sample.of(values), len(values), goal=goal, note=note)


def _compare(program: Program) -> None:
    program._compare_at = 0.0
    program.step()


def _timed(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _await(condition: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Failed(f"it did not happen within {seconds:g} s")
        time.sleep(0.002)
