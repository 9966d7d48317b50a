"""Figures, files of results, and the cases."""

import json
import re
from pathlib import Path
from typing import Any

import pytest


def test_figure_survives_its_json(bench: Any) -> None:
    measurement = bench("measurement")
    figure = measurement.Figure(
        "add", "ms", measurement.Sample.of([1.25, 2.5, 3.0]), 3, peer=measurement.Sample.of([10.0, 11.0]), peer_name="ptp",
        goal=measurement.at_most(0.3), then=measurement.at_least(2),
        note="a note", versions={"svc": "1"}, parameters={"pods": 7},
    )  # fmt: skip
    assert measurement.Figure.of_json(json.loads(json.dumps(figure.to_json()))) == figure
    assert figure.key == "add pods=7"


def test_speed_up_survives_its_json(bench: Any) -> None:
    measurement = bench("measurement")
    figure = measurement.Figure(
        "cidr", "ns", measurement.Sample(50.0), 7, peer=measurement.Sample(500.0), peer_name="netaddr", speedup=True
    )
    assert measurement.Figure.of_json(figure.to_json()).ratio == 10


def test_file_has_the_environment_first(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, results, measurement = bench("runs"), bench("results"), bench("measurement")
    figure = measurement.Figure("verb", "ms", measurement.Sample.of([1.0, 2.0]), 2)
    monkeypatch.setattr(runs, "_lines", lambda *_: iter([figure.to_json(), {"missing": "verbs: a server"}]))
    monkeypatch.setattr(runs, "wait_until_idle", lambda _: 0.5)
    monkeypatch.setattr(runs, "busy_share", lambda: 0.0)
    report = runs.run_cases(["verbs"], bench("options").Options(), 0.0, tmp_path / "a.jsonl")
    run = results.read(tmp_path / "a.jsonl")
    assert run.environment["processors"] >= 1
    assert run.environment["kernel"]
    assert run.figures == {"verb": figure}
    assert run.busy_keys() == {"verb"}
    assert report.missing == ["verbs: a server"]
    assert "DOUBTFUL: verbs" in report.text()


def test_case_in_a_process_of_its_own_says_what_is_missing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    options = bench("options").Options.quick(1)
    found = list(bench("runs")._lines("verbs", options))
    assert ["missing" in line for line in found] == [True]


def test_file_of_something_else_is_refused(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl does not have the results of a run"):
        bench("results").read_all(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"ours": 3}', "line 2: KeyError: 'peer'"),
        ('{"ours": 3', "line 2: JSONDecodeError"),
        ("7", "line 2: TypeError: it is not an object"),
        ('{"against": "ADD"}', "line 2: LookupError: it has no ratios"),
    ],
)
def test_line_that_no_run_writes_is_named(bench: Any, tmp_path: Path, line: str, reason: str) -> None:
    """Such as the last one of a run that was ended."""
    first = json.dumps({"environment": bench("environment").environment()})
    (tmp_path / "a.jsonl").write_text(f"{first}\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(reason)):
        bench("results").read(tmp_path / "a.jsonl")


def test_empty_file_is_named_as_such(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match="it is empty"):
        bench("results").read(tmp_path / "a.jsonl")


def test_file_that_cannot_be_written_ends_a_run_before_it_measures(bench: Any) -> None:
    with pytest.raises(SystemExit, match=r"'/proc/no': name another file by --json"):
        bench("runs").run_cases(["verbs"], bench("options").Options(), 0.0, Path("/proc/no"))


def test_joined_runs_are_joined_again_with_all_their_commits(bench: Any, tmp_path: Path) -> None:
    """The page's results are drawn again from their own file."""
    machine = bench("environment").environment()
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps({"environment": {**machine, "commit": name}}) + "\n")
    plots, results = bench("plots"), bench("results")
    plots.join([tmp_path / "b", tmp_path / "a"], tmp_path / "joined")
    plots.join([tmp_path / "joined"], tmp_path / "again")
    environment = results.read(tmp_path / "again").environment
    assert (environment["commit"], environment["joined"]) == ("b", ["a", "b"])


def test_folder_without_results_is_refused(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no results"):
        bench("results").read_all(tmp_path)


def test_cases_have_modules_and_known_parameters(bench: Any) -> None:
    cases, options = bench("cases"), bench("options").Options()
    for case in cases.ALL:
        assert hasattr(options, case.parameters[0] if case.parameters else "rounds")
        assert all(hasattr(options, name) for name in case.parameters)
        assert callable(getattr(bench(case.module), case.function)), case.name
    assert len(cases.CASES) == len(cases.ALL)


def test_options_survive_their_json(bench: Any) -> None:
    options = bench("options").Options.quick(3)
    assert bench("options").Options.of_json(json.loads(json.dumps(options.to_json()))) == options
