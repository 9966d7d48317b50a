"""Imported packages are declared as dependencies of the project or of one of its extras."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LATER = {"annotationlib", "tomllib"}  # modules of Pythons newer than the oldest
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
ON_INDEX = re.compile(r"pip[3]? install (?!-)['\"]?([\w.-]+)")
TOOLS = {"auditwheel", "build", "uv"}  # named by documents
LOCKED = {"node.txt": []} | {f"node-{name}.txt": EXTRAS[name] for name in EXTRAS}
PINNED = re.compile(r"^([\w.-]+)==[^\\]+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE)


def distribution(requirement: str) -> str:
    return re.split(r"[<>=;\[ ]", requirement)[0].lower()


def imported() -> Iterator[tuple[str, str]]:
    """Return each imported package that is not part of the standard library, with its source."""
    for source in sorted((ROOT / "svc").rglob("*.py")):
        for node in _executed(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"svc"}
            yield from ((package, str(source.relative_to(ROOT))) for package in packages)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Return the node and all nodes below it, except those that only type checkers read."""
    yield node
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in node.orelse if isinstance(node, ast.If) and is_for_types else ast.iter_child_nodes(node):
        yield from _executed(child)


def test_every_imported_package_is_declared() -> None:
    declared = {distribution(each) for each in (*PROJECT["project"]["dependencies"], *chain(*EXTRAS.values()))}
    known = packages_distributions()
    undeclared = [
        (package, source)
        for package, source in imported()
        if not declared & {name.lower() for name in known.get(package, [package])} and package not in LATER
    ]
    assert undeclared == []


def test_dependency_groups_equal_the_extras() -> None:
    groups = PROJECT["dependency-groups"]
    for name, requirements in EXTRAS.items():
        assert groups[name] == requirements


def test_upper_bounds_have_a_reason_beside_them() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    groups = lines.index("[dependency-groups]")  # those of the extras are repeated there
    bounded = [line for line in lines[:groups] if re.match(r' +"[^"]*<\d', line)]
    assert bounded
    assert [line for line in bounded if "#" not in line] == []


def pinned(name: str) -> set[tuple[str, str]]:
    """Return the distributions of a lock file with their versions."""
    return set(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))


def test_tests_run_with_the_versions_of_nodes() -> None:
    assert {name: missing for name in LOCKED if (missing := pinned(name) - pinned("ci.txt"))} == {}


def test_locked_versions_are_within_the_bounds() -> None:
    own = PROJECT["project"]["dependencies"]
    for name, more in LOCKED.items():
        for wanted in map(Requirement, (*own, *more)):
            versions = [version for found, version in pinned(name) if found == wanted.name.lower()]
            assert versions, f"{name} has no {wanted.name}"
            assert [each for each in versions if each not in wanted.specifier] == []


def test_documents_install_no_foreign_package() -> None:
    """On the package index, `svc` is another project."""
    name = PROJECT["project"]["name"]
    files = [
        ROOT / "README.md",
        *(path for part in ("svc", "docs", "wheels", "requirements") for path in (ROOT / part).rglob("*.[pm][yd]")),
    ]
    packages = {(str(path.relative_to(ROOT)), found) for path in files for found in ON_INDEX.findall(path.read_text())}
    assert {(path, found) for path, found in packages if found not in {name, ".", *TOOLS}} == set()


def locked(name: str) -> set[str]:
    """Return the distributions of a lock file. AssertionError if a line is not part of a pinned version with its hashes."""
    text = (ROOT / "requirements" / name).read_text()
    assert PINNED.sub("", text) == ""
    return {found.lower() for found in PINNED.findall(text)}


def test_lock_files_pin_declared_packages_by_hash() -> None:
    own = PROJECT["project"]["dependencies"]
    for name, more in LOCKED.items():
        assert {distribution(each) for each in (*own, *more)} <= locked(name), f"{name} is out of date: run `make lock KEEP=1`"
    groups = dict(PROJECT["dependency-groups"])
    of_wheels = {distribution(each) for each in groups.pop("wheels") if isinstance(each, str)}
    wanted = {distribution(each) for group in groups.values() for each in group if isinstance(each, str)}
    for name, packages in (("ci.txt", wanted), ("wheels.txt", of_wheels), ("hosted.txt", {"cibuildwheel"})):
        assert {*packages, *map(distribution, own)} <= locked(name), f"{name} is out of date: run `make lock KEEP=1`"
