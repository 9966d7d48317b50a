"""The size of the measurements."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.programs import versions


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` of one call each, `burst_rounds` of `burst_pods`, and concurrent pods for memory and density.

    `restarts` of the agent on each datastore, `soak_cycles` of ADD and DEL, and `attachments` when the agent starts.
    `scale_pods` on `scale_nodes` for the controllers. The curves have `curve_rounds` at each of their points: pods on the node,
    calls at once (`parallel`), prefix lengths and shares of use of blocks (`block_sizes`, `fills`), and `pools` with
    `blocks_of_pool` blocks of other nodes in each. Large clusters have `large_nodes` with `large_pods` each, of which
    `large_at_once` are at work at a time; the limit of their datastores takes `large_seconds` at each of its points.
    """

    rounds: int = 60
    warm_up: int = 4
    burst_rounds: int = 7
    burst_pods: int = 200
    memory_pods: int = 500
    density_pods: int = 1000
    restarts: int = 50
    soak_cycles: int = 20_000
    attachments: int = 2000
    scale_nodes: int = 1000
    scale_pods: int = 30_000
    curve_rounds: int = 20
    curve_pods: tuple[int, ...] = (1, 100, 250, 500, 1000, 1500, 2000)
    parallel: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    block_sizes: tuple[int, ...] = (20, 22, 24, 26, 28)
    fills: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
    pools: tuple[int, ...] = (1, 10, 50, 100, 200, 500)
    blocks_of_pool: int = 20
    large_nodes: tuple[int, ...] = (50, 100, 200, 500, 1000)
    large_pods: int = 30
    large_at_once: int = 32
    large_parallel: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    large_seconds: float = 3.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_json(found: dict[str, Any]) -> "Options":
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return Options(**fields)

    @staticmethod
    def quick(rounds: int) -> "Options":
        sizes = Options(rounds, warm_up=2, burst_rounds=2, burst_pods=48, memory_pods=100, density_pods=200)
        sizes = replace(sizes, restarts=5, soak_cycles=2000, attachments=200, curve_rounds=6, curve_pods=(1, 50, 200))
        sizes = replace(sizes, parallel=(1, 4, 16), block_sizes=(24, 26), fills=(0.0, 0.5, 0.9))
        sizes = replace(sizes, large_nodes=(10, 20, 40), large_pods=10, large_parallel=(1, 4, 16), large_seconds=1.0)
        return replace(sizes, pools=(1, 20), blocks_of_pool=10)


AT_ONCE = 16
VERSIONS = versions()
