"""The page of the benchmarks and its pictures are those of the results beside them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLOTS = ROOT / "docs" / "plots"
DRAW = """
import json, pathlib, sys
from bench.drawing import draw
from bench.series import Plot
draw(Plot.of_json(json.loads(pathlib.Path(sys.argv[1]).read_text())), pathlib.Path(sys.argv[2]))
"""


def test_page_has_the_tables_of_its_results(bench: Any) -> None:
    page = bench("page")
    text = page.PAGE.read_text()
    assert page.filled(text, bench("results").read(page.RESULTS)) == text, "run `python -m bench page`"


def test_page_has_each_block(bench: Any) -> None:
    page = bench("page")
    text = page.PAGE.read_text()
    assert [name for name in page.BLOCKS if f"<!-- begin {name} -->" not in text] == []


def test_goals_are_among_the_measured_figures(bench: Any) -> None:
    """Provisional results, of a busy machine, may lack some; the page says so."""
    page = bench("page")
    run = bench("results").read(page.RESULTS)
    assert run.busy_keys() or [key for _, key in page.GOALS if key not in run.figures] == []
    assert page.PAGE.read_text().count("| not measured |") == sum(key not in run.figures for _, key in page.GOALS)


def test_plots_have_the_data_of_the_results(bench: Any) -> None:
    figures = list(bench("results").read(bench("page").RESULTS).figures.values())
    made = {plot.name: plot.to_json() for plot in bench("series").plots(figures)}
    assert {"blocks", "memory", "parallel", "phases", "pods", "pools"} <= made.keys()
    for name, data in made.items():
        found = json.loads((PLOTS / f"{name}.json").read_text())
        assert found == json.loads(json.dumps(data)), "run `make plots`"
        assert f"(plots/{name}.svg)" in bench("page").PAGE.read_text()


@pytest.mark.parametrize("name", ["phases", "blocks"])
def test_same_data_gives_the_same_picture(bench: Any, tmp_path: Path, name: str) -> None:
    """In another process, because the library keeps files of fonts open."""
    bench("drawing")
    data = PLOTS / f"{name}.json"
    pictures = []
    for number in (1, 2):
        file = tmp_path / f"{number}.svg"
        done = subprocess.run([sys.executable, "-c", DRAW, str(data), str(file)], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        pictures.append(file.read_bytes())
    assert pictures[0] == pictures[1]
    assert b"<dc:date>" not in pictures[0]
