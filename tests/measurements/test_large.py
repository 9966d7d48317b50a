"""Growth laws, and the large cluster on real servers, with few nodes."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SIZES = (50, 100, 200, 500, 1000)


@pytest.mark.parametrize(
    ("exponent", "name"),
    [
        (0.0, "constant"),
        (0.9, "linear"),
        (1.5, "between linear and quadratic"),
        (2.1, "quadratic"),
        (3.0, "more than quadratic"),
    ],
)
def test_law_of_exact_costs(bench: Any, exponent: float, name: str) -> None:
    law = bench("growth_law").fit(SIZES, [7 * size**exponent for size in SIZES])
    assert law.exponent == pytest.approx(exponent)
    assert law.spread == pytest.approx(0, abs=1e-6)
    assert law.factor == pytest.approx(7)
    assert law.at(10) == pytest.approx(7 * 10**exponent)
    assert law.name == name


def test_interval_of_a_law_has_the_true_exponent_19_times_in_20(bench: Any) -> None:
    chance, inside = random.Random(17), 0
    for _ in range(1000):
        law = bench("growth_law").fit(SIZES, [size * chance.lognormvariate(0, 0.2) for size in SIZES])
        inside += abs(law.exponent - 1) <= law.spread
    assert 920 <= inside <= 980


@pytest.mark.parametrize(("sizes", "costs"), [((1, 2), (1, 2)), ((1, 1, 2), (1, 1, 2)), ((1, 2, 3), (1, 0, 2))])
def test_too_few_sizes_and_free_costs_have_no_law(bench: Any, sizes: tuple[int, ...], costs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no power law"):
        bench("growth_law").fit(sizes, costs)


def test_page_shows_the_laws_of_both_datastores(bench: Any) -> None:
    large, page, results = bench("large"), bench("page"), bench("results")
    costs = {"stored_bytes": {10: 100.0, 20: 200.0, 40: 400.0}, "claim_seconds": {10: 0.0, 20: 0.0, 40: 1.0}}
    figures = [figure for kind in ("etcd", "orch") for figure in large.laws(kind, costs)]
    run = results.Run(Path(), {}, [figure.to_json() for figure in figures])
    assert page.BLOCKS["laws"](run).splitlines()[4:] == ["| bytes stored | linear: 1.00 ± 0.00 | linear: 1.00 ± 0.00 |"]


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize("kind", ["etcd", "orch"])
def test_case_measures_each_part(bench: Any, kind: str) -> None:
    """All numbers that follow from the protocol alone are exact."""
    options = replace(
        bench("options").Options(),
        large_nodes=(10, 14, 20),
        large_pods=4,
        large_at_once=4,
        large_parallel=(1, 2),
        large_seconds=0.5,
    )
    lines = list(bench("runs")._lines(f"large-{kind}", options))
    assert [line for line in lines if "ours" not in line] == []
    figures = {figure.key.removeprefix(f"large_{kind}_"): figure for figure in map(_figure_of(bench), lines)}
    for nodes in options.large_nodes:
        assert figures[f"wave nodes={nodes}"].ours.p50 > 1
        assert figures[f"fill_conflicts nodes={nodes}"].ours.p50 == 0
        assert figures[f"refusal nodes={nodes}"].n == nodes
    assert figures["law of=stored_bytes"].ours.p50 == pytest.approx(1, abs=0.05)
    assert figures["rate at_once=2"].ours.p50 > 0
    assert figures["bound"].peer.p50 == max(figures[f"bare at_once={number}"].ours.p50 for number in (1, 2))


def _figure_of(bench: Any) -> Any:
    return lambda line: bench("measurement").Figure.of_json(json.loads(json.dumps(line)))
