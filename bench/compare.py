"""Compare two runs, or two folders of runs: medians, spread, and whether they differ by more than noise.

With one run of each side, the calls are the samples. They share an agent, and two agents of one build differ by some percent,
so a smaller difference is noise (--noise). With at least 5 runs of each side, the medians of the runs are the samples.

Two things make a difference unclear: other programs that used the processors during a run, and a peer that differs as well. No
change of svc affects the peer, so the machine has changed.
"""

import argparse
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import verdict
from bench.arguments import number
from bench.environment import differences, words
from bench.measurement import Figure
from bench.results import Run, read_all
from bench.table import text_table
from bench.verdict import Comparison

NOISE = 0.03
HEADINGS = ("figure", "unit", "A", "spread", "B", "spread", "B/A", "95 %", "p", "verdict")


@dataclass(frozen=True, slots=True)
class Sides:
    """The values of a figure in A and in B, and of a peer that no change of svc can affect."""

    figure: Figure
    values: tuple[Sequence[float], Sequence[float]]
    control: tuple[Sequence[float], Sequence[float]] | None
    was_busy: bool


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        sides = read_all(options.a), read_all(options.b)
        _require_common(options, *sides)
    except (OSError, ValueError) as error:
        _parser().error(str(error))
    print(report(*sides, options.noise, ignores_load=options.ignore_load))
    return 0


def _require_common(options: argparse.Namespace, one: Sequence[Run], other: Sequence[Run]) -> None:
    """Raise ValueError unless a figure is in both."""
    if not _by_key(one).keys() & _by_key(other).keys():
        remedy = "compare runs of the same cases; the results of --against are ratios already"
        raise ValueError(f"{options.a} and {options.b} have no figure in common: {remedy}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", type=Path, metavar="A", help="file of results, or folder of such files")
    parser.add_argument("b", type=Path, metavar="B")
    parser.add_argument(
        "--noise", type=number(0, 1), help=f"smallest ratio that counts ({NOISE}, or 0 with 5 runs of each side)"
    )
    parser.add_argument("--ignore-load", action="store_true", help="judge figures of a busy machine like others")
    return parser


def report(one: Sequence[Run], other: Sequence[Run], noise: float | None = None, *, ignores_load: bool = False) -> str:
    """Return the comparison as text."""
    busy = set[str]() if ignores_load else {key for run in (*one, *other) for key in run.busy_keys()}
    by_runs = min(len(one), len(other)) >= verdict.FEWEST
    noise = noise if noise is not None else 0.0 if by_runs else NOISE
    found = _sides(one, other, busy, by_runs=by_runs)
    compared = verdict.corrected(verdict.of_samples(*sides.values) for sides in found)
    controls = verdict.corrected(verdict.of_samples(*sides.control or sides.values) for sides in found)
    rows = [
        _row(sides, comparison, _word(sides, comparison, control, noise))
        for sides, comparison, control in zip(found, compared, controls, strict=True)
    ]
    samples = "medians of runs" if by_runs else "calls"
    return "\n".join(
        [
            f"A: {words(one[0].environment)}{_further(one)}",
            f"B: {words(other[0].environment)}{_further(other)}",
            *(f"DOUBTFUL: {text}" for text in differences(one[0].environment, other[0].environment)),
            "",
            text_table([HEADINGS, *rows], right={2, 3, 4, 5, 6, 8}),
            "",
            f"samples: {samples}; spread: quartiles, of the median; noise: {noise:.0%}; p: corrected for {len(rows)} figures",
            *_missing(one, other),
        ]
    )


def _sides(one: Sequence[Run], other: Sequence[Run], busy: Collection[str], *, by_runs: bool) -> list[Sides]:
    first, second = _by_key(one), _by_key(other)
    return [
        Sides(
            first[key][0],
            (_values(first[key], by_runs=by_runs), _values(second[key], by_runs=by_runs)),
            (_values(first[key], by_runs=by_runs, peers=True), _values(second[key], by_runs=by_runs, peers=True))
            if first[key][0].has_control and second[key][0].has_control
            else None,
            key in busy,
        )
        for key in first
        if key in second
    ]


def _by_key(runs: Sequence[Run]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = {}
    for run in runs:
        for key, figure in run.figures.items():
            found.setdefault(key, []).append(figure)
    return found


def _values(figures: Sequence[Figure], *, by_runs: bool, peers: bool = False) -> list[float]:
    samples = [sample for figure in figures if (sample := figure.peer if peers else figure.ours)]
    return [sample.p50 for sample in samples] if by_runs else [value for sample in samples for value in sample.values]


def _word(sides: Sides, comparison: Comparison, control: Comparison, noise: float) -> str:
    word = comparison.verdict(noise, higher_is_better=sides.figure.is_rate)
    if word in (verdict.SAME, verdict.FEW):
        return word
    if sides.was_busy:
        return "unclear: the processors were busy"
    if sides.control and control.differs(noise):
        return f"unclear: {sides.figure.peer_name} changed as well ({control.ratio:.3f})"
    return word


def _row(sides: Sides, comparison: Comparison, word: str) -> tuple[str, ...]:
    cells = [cell for values in sides.values for cell in (f"{statistics.median(values):.4g}", _spread(values))]
    return sides.figure.key, sides.figure.unit, *cells, *comparison.cells, word


def _spread(values: Sequence[float]) -> str:
    """Return half of the distance between the quartiles, as a share of the median."""
    middle = statistics.median(values)
    if len(values) < verdict.FEWEST or not middle:
        return ""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{(high - low) / 2 / middle:.1%}"


def _further(runs: Sequence[Run]) -> str:
    return f" and {len(runs) - 1} further runs" if len(runs) > 1 else ""


def _missing(one: Sequence[Run], other: Sequence[Run]) -> list[str]:
    first, second = _by_key(one), _by_key(other)
    texts = ((first.keys() - second.keys(), "A"), (second.keys() - first.keys(), "B"))
    return [f"only in {name}: {', '.join(sorted(keys))}" for keys, name in texts if keys]
