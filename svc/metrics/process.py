"""Metrics that each program has: processor time, memory, threads and descriptors of the process."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from svc.metrics import Sample

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def process_samples() -> Iterator[Sample]:
    """Yield the numbers of this process, see proc(5)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    yield "process_cpu_seconds_total", (), (int(fields[11]) + int(fields[12])) / _TICKS
    yield "process_threads", (), int(fields[17])
    yield "process_virtual_memory_bytes", (), int(fields[20])
    yield "process_resident_memory_bytes", (), int(fields[21]) * _PAGE
    with suppress(OSError):
        yield "process_open_fds", (), len(os.listdir("/proc/self/fd"))
    yield "process_max_fds", (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def start_time() -> float:
    """Return the start of this process as Unix time."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS, 2)
