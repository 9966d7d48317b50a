#!/usr/bin/env python3
"""Measure what the tests detect.

Change one place of the code at a time, run the tests that need no server, and list the changes that no test failed for. The
changes are made in CLONE: a clone of the repository whose own .venv has the package installed (`make lint` there).
"""

import argparse
import ast
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("agent", "attach", "cni", "dataplane", "datastore", "ipam", "model", "netconf", "waits")
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SMALLEST_BYTES = 1500  # shorter modules have few places to change
LONGEST = 300  # maximum characters of a place
TEST_SECONDS = 400
# A test that checks the sources themselves would fail for every change.
TESTS = (
    ".venv/bin/pytest", "-q", "-x", "-n", "2", "--dist", "loadgroup", "-m", "not server and not slow",
    "-k", "not layers and not reference", "tests/unit", "tests/netns", "tests/contract",
)  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A module with one place changed."""

    line: int
    before: str
    after: str
    source: str


def replacements(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield each expression that can be changed, with its replacement. Calls that log are omitted."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left, [operator, *others], compared) if type(operator) in SWAPPED:
                swapped = ast.Compare(left, [SWAPPED[type(operator)](), *others], compared)
                yield node, f"({ast.unparse(swapped)})"
            case ast.BoolOp(operator, values):
                yield node, f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))})"
            case ast.UnaryOp(ast.Not(), operand):
                yield node, f"({ast.unparse(operand)})"
            case ast.Expr(ast.Call() as call) if "log" not in ast.unparse(call):
                yield call, "None"


def mutate(source: str, choice: random.Random) -> Mutation | None:
    """Return a random change of a module. Return None if the module has no place for one, or the result is not valid Python."""
    places = list(replacements(ast.parse(source)))
    if not places:
        return None
    node, after = choice.choice(places)
    before = ast.get_source_segment(source, node) or ""
    lines = source.splitlines(keepends=True)
    column = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
    start = sum(map(len, lines[: node.lineno - 1])) + column
    changed = source[:start] + after + source[start + len(before) :]
    try:
        compile(changed, "mutated", "exec")
    except SyntaxError:  # inside an f-string, for example
        return None
    return Mutation(node.lineno, before, after, changed) if len(before) <= LONGEST else None


def survives(clone: Path, file: Path, mutation: Mutation) -> bool:
    """Return whether all tests pass with the change, which is reverted afterwards."""
    original = file.read_text()
    file.write_text(mutation.source)
    try:
        return subprocess.run(TESTS, cwd=clone, capture_output=True, timeout=TEST_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        file.write_text(original)


def main() -> None:
    """Print each change that survives, and how many did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path, metavar="CLONE")
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="PACKAGE", help="of svc; default: the larger ones")
    parser.add_argument("--seconds", type=float, default=600, help="for how long (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="which changes are made (default: %(default)d)")
    options = parser.parse_args()
    choice = random.Random(options.seed)
    found = (path for package in options.packages for path in sorted((options.clone / "svc" / package).rglob("*.py")))
    files = [path for path in found if path.stat().st_size >= SMALLEST_BYTES]
    killed = survived = 0
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        file = choice.choice(files)
        mutation = mutate(file.read_text(), choice)
        if mutation is None:
            continue
        if survives(options.clone, file, mutation):
            survived += 1
            place = f"{file.relative_to(options.clone)}:{mutation.line}"
            print(f"{place}: {mutation.before[:80]!r} -> {mutation.after[:80]!r}", flush=True)
        else:
            killed += 1
    print(f"{killed} killed, {survived} survived")


if __name__ == "__main__":
    main()
