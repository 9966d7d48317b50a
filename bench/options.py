"""The size of the measurements."""

from dataclasses import dataclass, replace

from bench.programs import versions


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` of one call each, `burst_rounds` of `burst_pods`, and concurrent pods for memory and density.

    `restarts` of the agent on each datastore, `soak_cycles` of ADD and DEL, and `attachments` when the agent starts.
    `scale_pods` on `scale_nodes` for the controllers.
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

    @staticmethod
    def quick(rounds: int) -> "Options":
        sizes = Options(rounds, warm_up=2, burst_rounds=2, burst_pods=48, memory_pods=100, density_pods=200)
        return replace(sizes, restarts=5, soak_cycles=2000, attachments=200)


AT_ONCE = 16
VERSIONS = versions()
