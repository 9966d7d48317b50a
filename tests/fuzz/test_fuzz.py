"""A short run of every fuzzer with the inputs that earlier runs have kept; `make fuzz` runs longer. And tests of the fuzzer."""

import time
from collections import Counter
from random import Random

import pytest

from fuzz import run as running
from fuzz.mutate import MAX_BYTES, mutate
from fuzz.run import Hang, Target, WrongAcceptance, run
from fuzz.targets import TARGETS, kept

INPUTS = 1500


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_input_is_read_correctly_or_refused(target: Target) -> None:
    """Each target accepts and refuses some of the inputs, so the run reaches both."""
    report = run(target, kept(target.name), INPUTS if target.name != "manifest" else INPUTS // 10, "test")
    assert [(failure.data, failure.error) for failure in report.failures] == []
    assert 0 < report.accepted < report.inputs


def test_mutation_is_repeatable_and_bounded() -> None:
    seeds = [b'{"a": [1, "x"], "b": {"c": null}}', b""]
    made = [[mutate(seeds[0], seeds, [b"word"], Random(number)) for number in range(500)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 400
    assert len(mutate(b"x" * MAX_BYTES, seeds, [], Random(1))) <= MAX_BYTES


def planted(fault: str) -> Target:
    """Return a reader that fails for inputs with the word `bad`."""

    def read(data: bytes) -> str:
        if b"refuse" in data:
            raise ValueError(f"refused: {data!r}")
        if b"bad" in data:
            match fault:
                case "crash":
                    raise KeyError("bad")
                case "hang":
                    time.sleep(1)
                case "acceptance":
                    raise WrongAcceptance("bad")
        return "good"

    return Target("planted", read, (ValueError,), [b"good", b"refuse"], [b"bad"])


@pytest.mark.parametrize(("fault", "error"), [("crash", KeyError), ("hang", Hang), ("acceptance", WrongAcceptance)])
def test_planted_faults_are_found(fault: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HANG_SECONDS", 0.02)
    monkeypatch.setattr(running, "MAX_FAILURES", 2)
    report = run(planted(fault), [], 500, "0")
    assert Counter(type(failure.error) for failure in report.failures) == {error: 2}
    assert all(b"bad" in failure.data for failure in report.failures)


def test_inputs_with_new_answers_are_novel() -> None:
    """The answers count without the values in them."""
    report = run(planted("none"), [], 300, "0")
    assert report.failures == []
    assert report.novel == []

    def read(data: bytes) -> str:
        return str(min(len(data), 12))

    grown = run(Target("length", read, (), [b"ab"], [b"cd"]), [], 2000, "0")
    assert {len(each) for each in grown.novel} >= {0, 1, 3, 4, 5}
