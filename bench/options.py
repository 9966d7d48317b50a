"""The size of the measurements."""

from dataclasses import dataclass

from bench.programs import versions


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` of one call each, `burst_rounds` of `burst_pods`, and concurrent pods for memory and density."""

    rounds: int = 60
    warm_up: int = 4
    burst_rounds: int = 7
    burst_pods: int = 200
    memory_pods: int = 500
    density_pods: int = 1000

    @staticmethod
    def quick(rounds: int) -> "Options":
        return Options(rounds, warm_up=2, burst_rounds=2, burst_pods=48, memory_pods=100, density_pods=200)


AT_ONCE = 16
VERSIONS = versions()
