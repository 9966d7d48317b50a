"""An allocation of one address and its release, in this process, as functions of the fill and the size of the block."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.ipam_load import LAST_ZONE, SPACE, block_documents, elapsed_us, fill, pool_documents
from bench.measurement import Figure, Sample
from bench.options import Options
from harness.datastores import EmbeddedSite, set_ready
from harness.ipam import NODE, put_node
from svc.datastore.api import Backend
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService

WARM_UP = 3
ATTRIBUTES = {"node": NODE, "pod": "web-0", "namespace": "default"}


def run(options: Options) -> Iterator[Figure]:
    for length in options.block_sizes:
        size = 1 << (32 - length)
        for used in sorted({min(int(size * share), size - 1) for share in options.fills}):
            with (
                tempfile.TemporaryDirectory(prefix="svc-bench-") as folder,
                closing(EmbeddedSite(Path(folder)).open()) as store,
            ):
                yield from _measured(store, options, length, used)


def _measured(store: Backend, options: Options, length: int, used: int) -> Iterator[Figure]:
    size = 1 << (32 - length)
    set_ready(store)
    put_node(store, NODE, zone=LAST_ZONE)
    fill(store, pool_documents(1, block_length=length))
    fill(store, block_documents(SPACE.block(0, length), NODE, used))
    times = cycles(IpamService(store, NODE), options.curve_rounds + WARM_UP)
    parameters = {"size": size, "used": used, "fill": round(used / size, 3)}
    for name, values in zip(("assign", "release"), times, strict=True):
        yield Figure(f"block_{name}", "us", Sample.of(values[WARM_UP:]), options.curve_rounds, parameters=parameters)


def cycles(ipam: IpamService, rounds: int) -> tuple[list[float], list[float]]:
    """Assign an address and release it, so many times. Return the microseconds of both."""
    assigned, released = list[float](), list[float]()
    for number in range(rounds):
        handle = f"net.{number:064x}"
        began = time.perf_counter()
        ipam.assign(Assign(handle, ATTRIBUTES))
        assigned.append(elapsed_us(began))
        began = time.perf_counter()
        ipam.release(Release(handle))
        released.append(elapsed_us(began))
    return assigned, released
