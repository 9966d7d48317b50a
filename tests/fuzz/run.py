"""Execution of a target with mutated inputs, in this process."""

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Final

from fuzz.mutate import mutate

HANG_SECONDS: Final = 5.0
MAX_CORPUS: Final = 4000  # inputs of one run
MAX_KEPT_BYTES: Final = 4096  # of an input that is kept for the next run
MAX_FAILURES: Final = 20
MAX_WORDS: Final = 12  # of an error that count for its answer
GROUP_WORDS, MAX_OF_GROUP = 4, 25  # answers with the same first words, so that words of the input do not fill the corpus
_WORDS: Final = re.compile(r"[a-zA-Z_.]{2,}")
_VALUES: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\d+")


class WrongAcceptance(Exception):
    """A target has accepted an input that it must refuse, or has read it wrongly."""


class Hang(BaseException):
    """A target has not answered in time. It derives from BaseException, so that no target can catch it."""


@dataclass(frozen=True)
class Target:
    """A reader of foreign input.

    `read` raises an exception of `refusals` for input that it refuses; otherwise it checks what it has read, and returns a
    word for the kind of acceptance. `words` are of the input's language.
    """

    name: str
    read: Callable[[bytes], str]
    refusals: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()
    prepare: Callable[[], object] = lambda: None  # before the first input, without a limit of time


@dataclass(frozen=True)
class Failure:
    target: str
    data: bytes
    error: BaseException


@dataclass
class Report:
    """The result of a run. `novel` are inputs with an answer that no earlier input had."""

    inputs: int = 0
    accepted: int = 0
    failures: list[Failure] = field(default_factory=list)
    novel: list[bytes] = field(default_factory=list)


def run(
    target: Target, kept: Sequence[bytes], count: int, seed: str, announce: Callable[[bytes], None] = lambda _: None
) -> Report:
    """Read the kept inputs, then `count` mutated ones. Call `announce` with each input before it is read."""
    report, random, corpus = Report(), Random(f"{target.name}:{seed}"), [*target.seeds, *kept]
    known, groups = set[str](), Counter[str]()
    target.prepare()
    with _alarm():
        for data in _inputs(target, corpus, count, random):
            announce(data)
            answer = _answer(target, data, report)
            group = " ".join(answer.split()[:GROUP_WORDS])
            if answer and answer not in known and groups[group] < MAX_OF_GROUP:
                known.add(answer)
                groups[group] += 1
                if report.inputs > len(target.seeds) + len(kept) and len(corpus) < MAX_CORPUS:
                    corpus.append(data)
                    report.novel += [data] if len(data) <= MAX_KEPT_BYTES else []
            if len(report.failures) >= MAX_FAILURES:
                break
    return report


def _inputs(target: Target, corpus: list[bytes], count: int, random: Random) -> Iterator[bytes]:
    yield from tuple(corpus)
    for _ in range(count):
        yield mutate(random.choice(corpus), corpus, target.words, random)


def _answer(target: Target, data: bytes, report: Report) -> str:
    """Read an input; return its answer without values. Add a failure to the report."""
    report.inputs += 1
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        word = target.read(data)
        report.accepted += 1
        return f"accepted: {word}"
    except target.refusals as refusal:
        words = _WORDS.findall(_VALUES.sub(" ", str(refusal)))
        return " ".join((type(refusal).__name__, *words[:MAX_WORDS]))
    except (Exception, Hang) as failure:
        report.failures.append(Failure(target.name, data, failure))
        return ""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _alarm() -> Iterator[None]:
    begin = time.monotonic()

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"no answer within {HANG_SECONDS:g} s, {time.monotonic() - begin:.0f} s after the start of the run")

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
