"""Tests from wheels run without the sources: those that read the sources are left out, by name."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import pytest

from harness.shim import ROOT
from harness.wheel_scripts import wheels

__all__ = ["wheels"]

TESTS: Final = ROOT / "tests"
CHECKOUT: Final = "Path(__file__).parents[2]"
SCRIPTS: Final = {"wheels"}  # a fixture that imports from the checkout
SKIPPED: Final = {"compile_shim"}  # it needs a compiler, which the root of a trial has not


class Module:
    """What of a test module reads files of the checkout that are not tests."""

    def __init__(self, source: str) -> None:
        self._checkout: set[str] = set()  # names whose value is the folder of the checkout
        self.readers: set[str] = set()  # names that need a file in it
        body = ast.parse(source).body
        for node in body:
            self._read_import(node)
        before = -1
        while before < len(self.readers) + len(self._checkout):  # a function may stand before one that it calls
            before = len(self.readers) + len(self._checkout)
            for node in body:
                self._read(node)

    def _read_import(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("harness."):
            names = {each.name for each in node.names}
            self.readers |= names & (readers_of(node.module) - SKIPPED | SCRIPTS)
            self._checkout |= names & ({"ROOT"} if node.module == "harness.shim" else set())

    def _read(self, node: ast.stmt) -> None:
        names = set(defined(node))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and self._is_checkout(node.value):
            self._checkout.update(names)
        elif names and any(map(self._needs_file, ast.walk(node))):
            self.readers.update(names)

    def _is_checkout(self, node: ast.AST) -> bool:
        return node.id in self._checkout if isinstance(node, ast.Name) else ast.unparse(node) == CHECKOUT

    def _needs_file(self, node: ast.AST) -> bool:
        match node:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._is_checkout(left) and ast.unparse(right) != "'tests'"
            case ast.Call(func=ast.Attribute(value=value, attr="glob" | "rglob")):
                return self._is_checkout(value)
            case ast.Name(id=name) | ast.arg(arg=name):
                return name in self.readers
        return False


@cache
def readers_of(module: str) -> set[str]:
    """Return the names in a module of the harness that need a file of the checkout."""
    return Module((TESTS / module.replace(".", "/")).with_suffix(".py").read_text()).readers


def defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (each.id for each in targets if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def left_out(names: Iterable[str], module: str) -> Iterator[str]:
    """Yield the names of a module's tests that are not run."""
    for path, _, function in (name.partition("::") for name in names):
        if path == module and function:
            yield function


@pytest.mark.parametrize("folder", ["unit", "netns"])
def test_trial_leaves_out_what_reads_the_sources(folder: str, wheels: Any) -> None:
    """The root of a trial has the tests, and of the sources only the settings of pytest. All other tests run."""
    for path in sorted((TESTS / folder).rglob("test_*.py")):
        module = str(path.relative_to(TESTS))
        if module not in wheels("trial").OF_SOURCES:
            readers = {each for each in Module(path.read_text()).readers if each.startswith("test")}
            assert readers == set(left_out(wheels("trial").OF_SOURCES, module)), f"{module}: OF_SOURCES of wheels/trial.py"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("PAGE = Path(__file__).parents[2] / 'docs'\ndef test_a():\n    PAGE.read_text()\ndef test_b(): ...", {"test_a"}),
        (
            "def test_a():\n    rows()\ndef rows():\n    return ROOT / 'README'\nROOT = Path(__file__).parents[2]",
            {"test_a"},
        ),
        ("from harness.shim import ROOT\ndef test_a():\n    run(cwd=ROOT, path=ROOT / 'tests')", set()),
        ("from harness.shim import ROOT\ndef test_a():\n    list(ROOT.glob('*.md'))", {"test_a"}),
        ("from harness.wheel_scripts import wheels\ndef test_a(wheels): ...\ndef test_b(): ...", {"test_a"}),
    ],
    ids=["constant", "helper", "tests", "glob", "fixture"],
)
def test_readers_of_the_sources_are_found(source: str, expected: set[str]) -> None:
    assert {each for each in Module(source).readers if each.startswith("test")} == expected


def test_trial_leaves_out_only_tests_that_are_there(wheels: Any) -> None:
    for name in (*wheels("trial").OF_SOURCES, *wheels("trial").OF_HOST):
        module, _, function = name.partition("::")
        assert not function or f"def {function}(" in (TESTS / module).read_text(), name
        assert (TESTS / module).exists(), name


def test_trial_installs_what_the_lock_file_has(wheels: Any) -> None:
    trial = wheels("trial")
    pinned = {line.partition("==")[0] for line in trial.constraints().splitlines()}
    assert {"pytest", "hypothesis"} <= pinned
    assert {re.split(r"[<>=\[]", each)[0].lower() for each in trial.tools()} <= pinned
