"""Views of allocations: a flame graph, the allocations of memory, and the lines of the compiled core."""

import linecache
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from bench import ROOT
from bench.measurement import Figure, Missing, Sample
from bench.table import text_table

if TYPE_CHECKING:
    from bench.alloc_work import Work

FLAME_SECONDS = 10
SAMPLES_A_SECOND = 500
ATTACHED_SECONDS = 1.0  # until the sampler has read the symbols of all libraries
MEMORY_ROUNDS = 200
TOP = 25
NEWEST_PYTHON = (3, 11)  # newer ones report the lines of Cython by another interface


def flame(work: "Work", folder: Path) -> Iterator[Figure]:
    """Sample all threads while they allocate, the functions of the compiled core included."""
    sampler = shutil.which("py-spy")
    if not sampler:
        raise Missing("py-spy is missing: pip install --group bench")
    file = folder / f"alloc-{work.load.store}.svg"
    command = [sampler, "record", "--pid", str(os.getpid()), "--native", "--output", str(file)]
    command += ["--rate", str(SAMPLES_A_SECOND), "--duration", str(FLAME_SECONDS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    work.run_for(FLAME_SECONDS + ATTACHED_SECONDS)
    said, _ = process.communicate()
    if process.returncode:
        raise Missing(f"py-spy cannot sample here: {said.strip()}")
    yield Figure("alloc_samples", "", Sample(_samples(said)), 1, parameters=work.load.parameters(), note=f"flame graph: {file}")


def _samples(said: str) -> int:
    return int(said.partition("Samples: ")[2].split()[0]) if "Samples: " in said else 0


def allocations(work: "Work", folder: Path) -> Iterator[Figure]:
    """Count the allocations of Python and of malloc, and list the places that allocate most often."""
    try:
        import memray
    except ImportError:
        raise Missing("memray is missing: pip install --group bench") from None
    file = folder / f"alloc-{work.load.store}.memray"
    file.unlink(missing_ok=True)
    with memray.Tracker(file, trace_python_allocators=True):
        work.run(MEMORY_ROUNDS)
    calls = len(work.meter.times("assign")) + len(work.meter.times("release"))
    numbers, sizes = Counter[str](), Counter[str]()
    with memray.FileReader(file) as reader:
        for record in reader.get_allocation_records():
            if record.size:  # otherwise memory was freed
                place = _place(record)
                numbers[place] += 1
                sizes[place] += record.size
    file.unlink()
    parameters = work.load.parameters()
    yield Figure("alloc_allocations", "a call", Sample(numbers.total() / calls), calls, parameters=parameters)
    yield Figure("alloc_bytes", "bytes a call", Sample(sizes.total() / calls), calls, parameters=parameters)
    rows = [(f"{number / calls:.2f}", f"{sizes[place] / calls:.0f}", place) for place, number in numbers.most_common(TOP)]
    lines = text_table([("allocations a call", "bytes a call", "place"), *rows], right={0, 1})
    (folder / f"alloc-{work.load.store}-allocations.txt").write_text(f"{lines}\n")


def _place(record: Any) -> str:
    """Return the innermost line of Python. The compiled core has none: its allocations belong to the line that calls it."""
    stack = record.stack_trace(1)
    if not stack:
        return "outside Python"
    function, file, line = stack[0]
    return f"{_short(file)}:{line} {function}"


def lines(work: "Work", folder: Path) -> Iterator[Figure]:
    """Time each line of the compiled core. Run this with a core that was built with line tracing."""
    if sys.version_info[:2] > NEWEST_PYTHON:
        raise Missing("lines of Cython are traced with Python 3.11 or older")
    tracer = LineTracer()
    tracer.start()
    try:
        work.run(work.load.rounds)
    finally:
        tracer.stop()
    if not tracer.hits:
        raise Missing("the core was built without line tracing")
    calls = len(work.meter.times("assign")) + len(work.meter.times("release"))
    whole = sum(tracer.seconds.values())
    rows = [
        (
            f"{seconds * 1e6 / calls:.2f}",
            f"{seconds / whole:.1%}",
            f"{tracer.hits[place] / calls:.2f}",
            f"{_short(place[0])}:{place[1]}",
            linecache.getline(*place).strip(),
        )
        for place, seconds in tracer.seconds.most_common()
    ]
    text = text_table([("us a call", "share", "hits a call", "line", ""), *rows], right={0, 1, 2})
    (folder / f"alloc-{work.load.store}-lines.txt").write_text(f"{text}\n")
    note = f"with the cost of tracing; {len(rows)} lines in {folder}"
    sample = Sample(whole * 1e6 / calls)
    yield Figure("alloc_core_traced", "us a call", sample, calls, parameters=work.load.parameters(), note=note)


Place = tuple[str, int]


class LineTracer:
    """The time of each line of the core in all threads.

    The time between two events belongs to the earlier line. So a line has the time of Python functions that it calls, and not
    that of other lines of the core.
    """

    def __init__(self) -> None:
        self.seconds: Counter[Place] = Counter()
        self.hits: Counter[Place] = Counter()
        self._local = threading.local()

    def start(self) -> None:
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _on_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(".pyx"):
            return None if frame.f_code.co_filename.endswith(".py") else self._ignore
        self._charge()
        self._stack.append(None)
        return self._on_event

    def _ignore(self, *_: object) -> Any:
        """Trace nothing in a frame of Cython, which cannot do without a function."""
        return self._ignore

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> Any:
        self._charge()
        if event == "line":
            place = _source(frame.f_code.co_filename), frame.f_lineno
            self.hits[place] += 1
            self._stack[-1:] = [place]
        elif event == "return" and self._stack:
            self._stack.pop()
        self._local.since = time.perf_counter()
        return self._on_event

    @property
    def _stack(self) -> list[Place | None]:
        stack: list[Place | None] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack

    def _charge(self) -> None:
        """Add the time since the last event to the line that runs."""
        stack = self._stack
        if stack and (place := stack[-1]) is not None:
            self.seconds[place] += time.perf_counter() - self._local.since


def _source(file: str) -> str:
    """Return the path of a source of the core. Cython names it as the build did."""
    return str(ROOT / "_core" / Path(file).name)


def _short(file: str) -> str:
    for part in ("site-packages/", f"{ROOT}/", f"python3.{sys.version_info.minor}/"):
        file = file.rpartition(part)[2]
    return file
