"""The compiled core beside libraries with the same functions: all bench/core_*.py."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from bench import ROOT
from bench._core_case import Case, measure
from bench.measurement import Figure, Missing, Sample, at_least
from bench.options import Options

ROUNDS = 7


def run(_: Options) -> Iterator[Figure]:
    missing = []
    for name in sorted(path.stem for path in (ROOT / "bench").glob("core_*.py")):
        try:
            cases = _cases(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
            continue
        for case in cases:
            yield figure(case, measure(case, ROUNDS))
    if missing:
        raise Missing(f"{'; '.join(missing)}: pip install --group bench")


def _cases(name: str) -> list[Case]:
    """Return the cases of a module. Raise ImportError if its peer is not installed."""
    cases: Callable[[], list[Case]] = importlib.import_module(f"bench.{name}").cases
    return cases()


def figure(case: Case, found: dict[str, Any]) -> Figure:
    """Return the figure of a measured case."""
    ours, peer = map(Sample.of, found["values"])
    return Figure(
        case.name, "ns", ours, len(ours.values), peer=peer, peer_name=case.peer_name,
        goal=at_least(case.goal), speedup=True, versions=found["versions"],
        parameters={"beside": case.peer_name},
    )  # fmt: skip
