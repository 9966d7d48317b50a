"""How a cost grows with a size: a power law, fitted to the logarithms of both by least squares."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# of Student's t for a two-sided interval of 95 %, by degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
_NAMES = {0.0: "constant", 1.0: "linear", 2.0: "quadratic"}
NEAR = 0.15  # an exponent that differs by so much from a whole number at most has its name


LAWS = {
    "claim_seconds": "time until every node has its first block",
    "claim_requests": "requests of all claims",
    "claim_bytes": "bytes that the server sends for all claims",
    "fill_seconds": "time to assign the other addresses",
    "fill_requests": "requests for these addresses",
    "stored_bytes": "bytes stored",
    "borrow_ms": "an address from another node's block",
    "refusal_ms": "a refusal, after all addresses are used",
    "refusal_bytes": "bytes that the server sends for a refusal",
    "wave_seconds": "time until nothing is left of the lost nodes",
    "wave_requests": "requests for the lost nodes",
}


@dataclass(frozen=True, slots=True)
class Law:
    """cost = factor * size ** exponent. The 95 % interval of the exponent is `exponent` ± `spread`."""

    exponent: float
    spread: float
    factor: float

    @property
    def name(self) -> str:
        """Return the law in words: the one whose exponent is near, or between which two it is."""
        for exponent, name in _NAMES.items():
            if abs(self.exponent - exponent) <= NEAR:
                return name
        below = [name for exponent, name in _NAMES.items() if exponent < self.exponent]
        above = [name for exponent, name in _NAMES.items() if exponent > self.exponent]
        if not below:
            return "falls"
        return f"between {below[-1]} and {above[0]}" if above else "more than quadratic"

    def at(self, size: float) -> float:
        """Return the cost at a size."""
        return self.factor * float(size**self.exponent)


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Law:
    """Return the law of costs at sizes. Raise ValueError for fewer than 3 different sizes, or a cost that is not positive."""
    if len(set(sizes)) < 3 or min(costs) <= 0:
        raise ValueError(f"no power law for sizes {list(sizes)} and costs {list(costs)}: give 3 sizes, and costs above 0")
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    exponent, level = statistics.linear_regression(x, y)
    freedom = len(x) - 2
    rest = sum((value - level - exponent * at) ** 2 for at, value in zip(x, y, strict=True)) / freedom
    mean = statistics.fmean(x)
    error = math.sqrt(rest / sum((at - mean) ** 2 for at in x))
    return Law(exponent, _T[min(freedom, len(_T)) - 1] * error, math.exp(level))
