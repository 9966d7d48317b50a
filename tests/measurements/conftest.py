"""The modules of the benchmark, which are not installed."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the benchmark. Skip if it needs a library that is not installed."""
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])

    def module(name: str) -> Any:
        return pytest.importorskip(f"bench.{name}", reason="the packages of the group bench are not installed")

    yield module
    for name in [each for each in sys.modules if each.partition(".")[0] == "bench"]:
        del sys.modules[name]
    importlib.invalidate_caches()
