"""The scripts in wheels/, which are not installed."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from harness.shim import ROOT


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the scripts."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield lambda name: importlib.import_module(f"wheels.{name}")
    for name in [each for each in sys.modules if each.partition(".")[0] == "wheels"]:
        del sys.modules[name]
