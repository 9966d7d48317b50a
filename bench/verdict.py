"""Whether two sets of measurements differ by more than noise.

Two things must hold for a difference. The 95 % interval of the ratio, by the bootstrap, lies outside of 1 +- noise. And a test
on ranks finds the difference, with its p-value corrected for the number of figures (Benjamini and Hochberg): of the differences
that a comparison names, 5 % are expected to be chance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95
FALSE_SHARE = 0.05
RESAMPLES = 1999
SEED = 0  # the same numbers give the same verdict
FEWEST = 5  # values of each side; with fewer, no test can find a difference among many figures

SAME, FEW = "no difference within noise", "too few values for a verdict"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of the second set to the first, with its interval, and the p-value; None with too few values."""

    ratio: float
    low: float
    high: float
    p: float | None

    @property
    def cells(self) -> tuple[str, str, str]:
        """Return ratio, interval and p-value for a table."""
        if self.p is None:
            return f"{self.ratio:.3f}", "", ""
        return f"{self.ratio:.3f}", f"{self.low:.3f} to {self.high:.3f}", f"{self.p:.4f}" if self.p >= 0.0001 else "< 0.0001"

    def differs(self, noise: float) -> bool:
        return self.p is not None and self.p < FALSE_SHARE and not (self.low <= 1 + noise and self.high >= 1 - noise)

    def verdict(self, noise: float, *, higher_is_better: bool) -> str:
        """Return the verdict in words. The p-value must be corrected."""
        if self.p is None:
            return FEW
        if not self.differs(noise):
            return SAME
        return "better" if (self.ratio > 1) is higher_is_better else "worse"


def of_samples(one: Sequence[float], other: Sequence[float]) -> Comparison:
    """Compare the medians of independent measurements, by the Mann-Whitney test."""
    ratio = _quotient(np.median(other), np.median(one))
    if min(len(one), len(other)) < FEWEST:
        return Comparison(ratio, ratio, ratio, None)
    low, high = _interval((np.asarray(other), np.asarray(one)), lambda a, b, axis: np.median(a, axis) / np.median(b, axis))
    return Comparison(ratio, low, high, float(stats.mannwhitneyu(one, other).pvalue))


def of_ratios(ratios: Sequence[float]) -> Comparison:
    """Judge the ratios of paired measurements by their geometric mean and the signed-rank test of Wilcoxon."""
    logs = np.log(ratios)
    ratio = float(np.exp(logs.mean()))
    if len(logs) < FEWEST:
        return Comparison(ratio, ratio, ratio, None)
    low, high = _interval((logs,), lambda a, axis: np.exp(a.mean(axis)))
    return Comparison(ratio, low, high, float(stats.wilcoxon(logs).pvalue) if logs.any() else 1.0)


def corrected(found: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons of one table with p-values that allow for their number."""
    all_of_them = list(found)
    tested = [one.p for one in all_of_them if one.p is not None]
    adjusted = iter(stats.false_discovery_control(tested) if tested else ())
    return [one if one.p is None else replace(one, p=float(next(adjusted))) for one in all_of_them]


def _interval(data: tuple[Any, ...], statistic: Any) -> tuple[float, float]:
    if all(np.ptp(values) == 0 for values in data):
        value = float(statistic(*data, axis=-1))
        return value, value
    found = stats.bootstrap(
        data, statistic, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile", vectorized=True,
        rng=np.random.default_rng(SEED),
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _quotient(one: float, other: float) -> float:
    return float(one / other) if other else float("nan")
