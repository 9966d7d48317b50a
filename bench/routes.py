"""svc-routes: its messages to the kernel, the program in a large cluster, packets during its faults, and ADDs beside it."""

from collections.abc import Iterator

from bench import routes_adds, routes_cluster, routes_kernel, routes_packets
from bench.measurement import Figure
from bench.options import Options


def run(options: Options) -> Iterator[Figure]:
    for part in (routes_kernel, routes_cluster, routes_packets, routes_adds):
        yield from part.run(options)
