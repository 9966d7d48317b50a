"""Verdicts on differences between runs."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT: dict[str, Any] = {
    "began": "2026-01-02T03:04:05+00:00", "kernel": "6.1", "machine": "x86_64", "processors": 2, "model": "one",
    "governor": "none", "virtual": "no", "memory_mib": 1, "load": [0.0], "python": "3", "libc": "glibc", "commit": "c",
    "versions": {"svc": "1"},
}  # fmt: skip


def calls(seed: int, middle: float, number: int = 60) -> list[float]:
    """Return times like those of calls: a log-normal body, and a tail."""
    chance = random.Random(seed)
    return [middle * chance.lognormvariate(0, 0.05) * (3 if chance.random() < 0.03 else 1) for _ in range(number)]


def judged(verdict: Any, one: Sequence[float], other: Sequence[float], **options: Any) -> str:
    (found,) = verdict.corrected([verdict.of_samples(one, other)])
    word: str = found.verdict(options.get("noise", 0.0), higher_is_better=options.get("rate", False))
    return word


def test_equal_runs_do_not_differ(bench: Any) -> None:
    """Of 60 figures without a difference, the comparison of a whole table names none or almost none."""
    verdict = bench("verdict")
    found = verdict.corrected(verdict.of_samples(calls(2 * seed, 3.0), calls(2 * seed + 1, 3.0)) for seed in range(60))
    assert sum(one.differs(0.0) for one in found) <= 1


def test_differences_are_found(bench: Any) -> None:
    verdict = bench("verdict")
    found = verdict.corrected(verdict.of_samples(calls(2 * seed, 3.0), calls(2 * seed + 1, 3.3)) for seed in range(40))
    assert sum(one.differs(0.03) for one in found) >= 36
    assert all(one.low <= one.ratio <= one.high for one in found)


def test_slower_is_worse_and_a_higher_rate_is_better(bench: Any) -> None:
    verdict = bench("verdict")
    assert judged(verdict, calls(1, 3.0), calls(2, 3.6)) == "worse"
    assert judged(verdict, calls(1, 3.6), calls(2, 3.0)) == "better"
    assert judged(verdict, calls(1, 3.0), calls(2, 3.6), rate=True) == "better"


def test_small_difference_is_noise(bench: Any) -> None:
    verdict = bench("verdict")
    one = [3.0 + number / 10_000 for number in range(60)]
    other = [1.02 * value for value in one]
    assert judged(verdict, one, other) == "worse"
    assert judged(verdict, one, other, noise=0.03) == verdict.SAME


def test_single_values_have_no_verdict(bench: Any) -> None:
    verdict = bench("verdict")
    assert judged(verdict, [30.0], [60.0]) == verdict.FEW


def test_values_without_any_spread(bench: Any) -> None:
    verdict = bench("verdict")
    assert judged(verdict, [2.0] * 8, [2.0] * 8) == verdict.SAME
    assert judged(verdict, [2.0] * 8, [3.0] * 8) == "worse"


def test_ratios_of_pairs(bench: Any) -> None:
    verdict, against = bench("verdict"), bench("against")
    chance = random.Random(1)
    same = [chance.lognormvariate(0, 0.05) for _ in range(20)]
    report = against.report({"ADD": same, "DEL": [0.9 * ratio for ratio in same]}).splitlines()
    assert report[1].endswith(verdict.SAME)
    assert report[2].startswith("DEL   0.9")
    assert report[2].endswith("better")


# Reports


def write(path: Path, bench: Any, ours: Sequence[float], peer: Sequence[float], busy: float = 0.0) -> None:
    measurement = bench("measurement")
    figure = measurement.Figure(
        "add", "ms", measurement.Sample.of(ours), len(ours), peer=measurement.Sample.of(peer), peer_name="ptp + host-local"
    )
    lines = [{"environment": ENVIRONMENT}, {"case": "single", **figure.to_json()}, {"case": "single", "busy": [busy, 0.0]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def report(bench: Any, folder: Path, **options: Any) -> str:
    runs = [bench("results").read_all(folder / name) for name in ("a.jsonl", "b.jsonl")]
    text: str = bench("compare").report(*runs, **options)
    return text


def test_report_names_the_difference(bench: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", bench, calls(1, 3.0), calls(3, 20.0))
    write(tmp_path / "b.jsonl", bench, calls(2, 2.4), calls(4, 20.0))
    line = next(line for line in report(bench, tmp_path).splitlines() if line.startswith("add"))
    assert line.endswith("  better")
    assert " 0.8" in line


def test_change_of_the_peer_makes_a_difference_unclear(bench: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", bench, calls(1, 3.0), calls(3, 20.0))
    write(tmp_path / "b.jsonl", bench, calls(2, 2.4), calls(4, 16.0))
    assert "unclear: ptp + host-local changed as well (0.8" in report(bench, tmp_path)


def test_busy_machine_makes_a_difference_unclear(bench: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", bench, calls(1, 3.0), calls(3, 20.0), busy=0.5)
    write(tmp_path / "b.jsonl", bench, calls(2, 2.4), calls(4, 20.0))
    assert "unclear: the processors were busy" in report(bench, tmp_path)
    assert "  better" in report(bench, tmp_path, ignores_load=True)


def test_five_runs_of_each_side_are_compared_by_their_medians(bench: Any, tmp_path: Path) -> None:
    """One agent is 10 % slower than the other of the same build: many calls of few agents do not show a difference."""
    chance = random.Random(7)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            middle = 3.0 * chance.lognormvariate(0, 0.1)
            write(tmp_path / name / f"{number}.jsonl", bench, calls(number, middle), calls(number, 20.0))
    runs = [bench("results").read_all(tmp_path / name) for name in ("a", "b")]
    text = bench("compare").report(*runs)
    assert "samples: medians of runs" in text
    assert bench("verdict").SAME in text


def test_different_machines_are_named(bench: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", bench, calls(1, 3.0), calls(3, 20.0))
    write(tmp_path / "b.jsonl", bench, calls(1, 3.0), calls(3, 20.0))
    first, *others = (tmp_path / "b.jsonl").read_text().splitlines()
    (tmp_path / "b.jsonl").write_text("\n".join([first.replace('"processors": 2', '"processors": 8'), *others]) + "\n")
    assert "DOUBTFUL: processors: 2, then 8" in report(bench, tmp_path)


def test_files_without_a_common_figure_are_refused(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as those of --against, which have ratios."""
    write(tmp_path / "a.jsonl", bench, calls(1, 3.0), calls(3, 20.0))
    lines = [{"environment": ENVIRONMENT}, {"against": "ADD", "ratios": [1.0]}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit):
        bench("compare").main([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    assert "b.jsonl have no figure in common: compare runs of the same cases" in capsys.readouterr().err


def test_noise_is_a_share(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench("compare").main([str(tmp_path), str(tmp_path), "--noise", "nan"])
    assert "argument --noise: 'nan' is not a number from 0 to 1" in capsys.readouterr().err


def test_command_prints_the_report(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.jsonl", bench, calls(1, 3.0), calls(3, 20.0))
    assert bench("compare").main([str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl")]) == 0
    assert bench("verdict").SAME in capsys.readouterr().out
