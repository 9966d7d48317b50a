"""What the sources look like: which module imports which, how long functions are, what is said of them."""

import ast
import importlib
import re
import statistics
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (  # from the ground up: a part imports itself and what is in the rows before its own
    ("values",),
    (
        "",
        "_core",
        "atomic_file",
        "cpu_pinning",
        "deadline",
        "names",
        "private_directory",
        "retry",
        "timestamps",
        "tls",
    ),
    ("call_trace", "imports", "metrics"),
    ("model",),
    ("datastore",),
    ("batching",),
    ("dataplane", "ipam", "netconf", "orch", "waits"),
    ("attach", "logs"),
    ("cni",),
    ("deploy",),
    ("admin",),
    ("agent", "controllers", "ctl"),
)
KEPT_APART = {("dataplane", "datastore"), ("netconf", "datastore")}  # downward, and still no business of theirs
ONLY_IN = {
    "pyroute2": "",
    "kubernetes": "svc/datastore/orch/auth.py",
    "grpc": "svc/datastore/etcd/connection.py",
    "etcd3": "svc/datastore/etcd/messages.py",
}  # the one module that may import it, if any
COMPILED = ("bitmap", "cidr", "cidr_table", "cidr_text", "netlink", "netns", "rtnl", "syscalls")

MEDIAN, NINE_OF_TEN, LONGEST = 8, 30, 60  # lines of a function
LONGEST_MODULE = 400

SOURCES = sorted((ROOT / "svc").rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(source: Path) -> ast.Module:
    return ast.parse(source.read_text())


def package_of(source: Path) -> list[str]:
    return list(source.relative_to(ROOT).parent.parts)


def part_of(module: list[str]) -> str:
    """The name after `svc`; empty for the package itself."""
    return (*module, "")[1]


def layer_of(part: str) -> int:
    found = [number for number, layer in enumerate(LAYERS) if part in layer]
    assert found, f"{part!r} has no place in LAYERS: say in this test where it belongs"
    return found[0]


def imports(source: Path) -> Iterator[list[str]]:
    """The modules that it imports, wherever it does so; those for types only included."""
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _imported_from(node, package_of(source))


def functions(source: Path) -> Iterator[tuple[str, int]]:
    """Every function, nested ones included, with its number of lines."""
    for node in ast.walk(tree(source)):
        if isinstance(node, Function):
            yield f"{name_of(source)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def undocumented(source: Path) -> Iterator[str]:
    """The module, and those of its classes and functions that others may use, where nothing is said of them."""
    for node in (tree(source), *tree(source).body):
        name = "" if isinstance(node, ast.Module) else getattr(node, "name", "_")
        if isinstance(node, ast.Module | ast.ClassDef | Function) and not name.startswith("_") and not ast.get_docstring(node):
            yield f"{name_of(source)} {name}"


def test_imports_run_downward() -> None:
    """A reader of a layer needs to know only the layers below it."""
    offenders = []
    for source in SOURCES:
        here = part_of([*package_of(source), source.stem]) if source.stem != "__init__" else part_of(package_of(source))
        ours = [module for module in imports(source) if module[0] == "svc" and part_of(module) != here]
        offenders += [f"{name_of(source)}: {'.'.join(module)}" for module in ours if not _is_below(part_of(module), here)]
    assert offenders == []


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions and for types only count too: such modules can only be understood together."""
    graph = {name: {".".join(module) for module in imports(source)} - {name} for name, source in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raise CycleError, which names the circle


def test_the_compiled_core_knows_nothing_of_the_rest() -> None:
    """Neither by import nor by cimport."""
    line = re.compile(r"^\s*(?:c?import|from)\s+(svc[\w.]*)", re.MULTILINE)
    sources = [*(ROOT / "_core").glob("*.pyx"), *(ROOT / "svc" / "_core").glob("*.p*")]
    found = [(path.name, module) for path in sources for module in line.findall(path.read_text())]
    assert found, "the core's own cimports are written otherwise by now: this test sees nothing"
    assert [
        (name, module) for name, module in found if not f"{module}.".startswith("svc._core.") and module != "svc._core"
    ] == []


def test_large_packages_stay_in_one_module() -> None:
    """They cost more memory and time than all of ours together."""
    found = {(module[0], name_of(source)) for source in SOURCES for module in imports(source) if module[0] in ONLY_IN}
    assert {(package, name) for package, name in found if ONLY_IN[package] != name} == set()


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_modules_are_the_ones_that_run(name: str) -> None:
    """No slower implementation in Python could stand in for them unnoticed."""
    assert str(importlib.import_module(f"svc._core.{name}").__file__).endswith(".so")


def test_every_compiled_module_is_known() -> None:
    """To this test, and no stub describes one that is gone."""
    assert sorted(path.stem for path in (ROOT / "_core").glob("*.pyx")) == sorted(COMPILED)
    assert {path.stem for path in (ROOT / "svc" / "_core").glob("*.pyi")} <= set(COMPILED)


def test_functions_are_short() -> None:
    """Half of them fit in a glance, nine of ten on a screen, and none is a scroll."""
    lengths = sorted((length, name) for source in SOURCES for name, length in functions(source))
    assert statistics.median(length for length, _ in lengths) <= MEDIAN
    assert lengths[len(lengths) * 9 // 10][0] <= NINE_OF_TEN
    assert [name for length, name in lengths if length > LONGEST] == []


def test_modules_are_short() -> None:
    """Each has one subject."""
    assert [name_of(source) for source in SOURCES if len(source.read_text().splitlines()) > LONGEST_MODULE] == []


def test_public_names_say_what_they_are_for() -> None:
    """A line of contract at every module, and at every class and function of it."""
    assert [name for source in SOURCES for name in undocumented(source)] == []


def test_no_file_depends_on_a_place_of_this_machine() -> None:
    """Every clone of the repository has another path."""
    place = re.compile(rb"/" + rb"work\b")
    files = (path for path in ROOT.rglob("*") if not NOT_OURS.intersection(path.relative_to(ROOT).parts))
    texts = (path for path in files if path.is_file() and path.suffix != ".so")
    assert [name_of(path) for path in texts if place.search(path.read_bytes())] == []


def _is_below(there: str, here: str) -> bool:
    return layer_of(there) < layer_of(here) and (here, there) not in KEPT_APART


def _imported_from(node: ast.ImportFrom, package: list[str]) -> Iterator[list[str]]:
    module = (node.module or "").split(".") if node.module else []
    if node.level:
        module = package[: len(package) + 1 - node.level] + module
    for alias in node.names:
        yield [*module, alias.name] if ".".join([*module, alias.name]) in MODULES else module
