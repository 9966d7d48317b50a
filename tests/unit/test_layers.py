"""Structure of the sources: imports between layers, length of functions and modules, docstrings."""

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
LAYERS = (  # lowest first: a part imports only itself and parts of the rows before its own
    ("light_dataclasses",),
    ("values",),
    (
        "",
        "_core",
        "atomic_file",
        "cpu_pinning",
        "deadline",
        "end_request",
        "heap",
        "lazy_modules",
        "names",
        "private_directory",
        "retry",
        "right_of_way",
        "timestamps",
        "tls",
    ),
    ("call_trace", "extras", "imports", "metrics"),
    ("model",),
    ("datastore",),
    ("batching", "leader"),
    ("dataplane", "ipam", "netconf", "orch", "waits"),
    ("attach", "logs"),
    ("cni",),
    ("deploy",),
    ("admin",),
    ("move",),
    ("upgrade",),
    ("agent", "controllers", "ctl", "routes"),
)
KEPT_APART = {
    ("dataplane", "datastore"),
    ("netconf", "datastore"),
}  # (importing part, imported part): downward, and forbidden nevertheless
ONLY_IN = {
    "pyroute2": "svc/routes/devices.py",
    "kubernetes": "svc/datastore/orch/client_access.py",
    "grpc": "svc/datastore/etcd/sync_grpc.py",
    "etcd3": "svc/datastore/etcd/messages.py",
}  # the one module that may import it, if any
COMPILED = ("bitmap", "cidr", "cidr_table", "cidr_text", "netlink", "netns", "rtnl", "syscalls")

MEDIAN, NINE_OF_TEN, LONGEST = 8, 30, 45  # lines of a function
LONGEST_MODULE = 350

SOURCES = sorted((ROOT / "svc").rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
IGNORED_DIRECTORIES = {
    ".git",
    ".venv",
    "build",
    "dist",
    "__pycache__",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(source: Path) -> ast.Module:
    return ast.parse(source.read_text())


def package_of(source: Path) -> list[str]:
    return list(source.relative_to(ROOT).parent.parts)


def part_of(module: list[str]) -> str:
    """Return the name after `svc`; empty for the package itself."""
    return (*module, "")[1]


def layer_of(part: str) -> int:
    found = [number for number, layer in enumerate(LAYERS) if part in layer]
    assert found, f"{part!r} is missing from LAYERS: add it to its layer in this test"
    return found[0]


def imports(source: Path) -> Iterator[list[str]]:
    """Yield every imported module, including imports inside functions and for types only."""
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _imported_from(node, package_of(source))


def functions(source: Path) -> Iterator[tuple[str, int]]:
    """Yield every function, nested ones included, with its number of lines."""
    for node in ast.walk(tree(source)):
        if isinstance(node, Function):
            yield f"{name_of(source)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def undocumented(source: Path) -> Iterator[str]:
    """Yield the module and its public classes and functions that have no docstring."""
    for node in (tree(source), *tree(source).body):
        name = "" if isinstance(node, ast.Module) else getattr(node, "name", "_")
        if isinstance(node, ast.Module | ast.ClassDef | Function) and not name.startswith("_") and not ast.get_docstring(node):
            yield f"{name_of(source)} {name}"


def test_imports_run_downward() -> None:
    """To understand a layer, only the layers below it must be known."""
    offenders = []
    for source in SOURCES:
        here = part_of([*package_of(source), source.stem]) if source.stem != "__init__" else part_of(package_of(source))
        imported = [module for module in imports(source) if module[0] == "svc" and part_of(module) != here]
        offenders += [f"{name_of(source)}: {'.'.join(module)}" for module in imported if not _is_below(part_of(module), here)]
    assert offenders == []


def test_architecture_shows_the_layers() -> None:
    """The page names each part of svc in its layer, and nothing else. The package itself has no name there."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Layers\n")[2].partition("\n## ")[0]
    shown = [set(line.strip().split(", ")) for line in page.splitlines() if line.startswith("    ")]
    assert shown == [set(layer) - {""} for layer in reversed(LAYERS)]


def test_each_part_has_a_layer() -> None:
    """LAYERS lists no part that does not exist."""
    parts = {path.stem for path in (ROOT / "svc").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {part for layer in LAYERS for part in layer} == parts - {"__init__"} | {""}


def test_imports_have_no_cycle() -> None:
    """Imports inside functions and for types only count too, because such modules can only be understood together."""
    graph = {name: {".".join(module) for module in imports(source)} - {name} for name, source in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raise CycleError, which names the cycle


def test_compiled_core_imports_only_itself() -> None:
    """This holds for import and for cimport."""
    line = re.compile(r"^\s*(?:c?import|from)\s+(svc[\w.]*)", re.MULTILINE)
    sources = [*(ROOT / "_core").glob("*.pyx"), *(ROOT / "svc" / "_core").glob("*.p*")]
    found = [(path.name, module) for path in sources for module in line.findall(path.read_text())]
    assert found, "no cimport was found: adapt the expression of this test to the sources of the core"
    assert [
        (name, module) for name, module in found if not f"{module}.".startswith("svc._core.") and module != "svc._core"
    ] == []


def test_large_packages_stay_in_one_module() -> None:
    """Importing them costs more memory and time than all modules of svc together."""
    found = {(module[0], name_of(source)) for source in SOURCES for module in imports(source) if module[0] in ONLY_IN}
    assert {(package, name) for package, name in found if ONLY_IN[package] != name} == set()


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_modules_are_loaded(name: str) -> None:
    """A slower implementation in Python would fail this test."""
    assert str(importlib.import_module(f"svc._core.{name}").__file__).endswith(".so")


def test_list_of_compiled_modules_is_complete() -> None:
    """No stub describes a module that does not exist."""
    assert sorted(path.stem for path in (ROOT / "_core").glob("*.pyx")) == sorted(COMPILED)
    assert {path.stem for path in (ROOT / "svc" / "_core").glob("*.pyi")} <= set(COMPILED)


def test_functions_are_short() -> None:
    """Most functions fit on a screen."""
    lengths = sorted((length, name) for source in SOURCES for name, length in functions(source))
    assert statistics.median(length for length, _ in lengths) <= MEDIAN
    assert lengths[len(lengths) * 9 // 10][0] <= NINE_OF_TEN
    assert [name for length, name in lengths if length > LONGEST] == []


def test_modules_are_short() -> None:
    """Each has one subject."""
    assert [name_of(source) for source in SOURCES if len(source.read_text().splitlines()) > LONGEST_MODULE] == []


def test_public_names_have_docstrings() -> None:
    """This holds for modules, and for their classes and functions."""
    assert [name for source in SOURCES for name in undocumented(source)] == []


def test_patterns_of_classes_name_their_fields() -> None:
    """For each match of `case Key(name)`, Python 3.10 and 3.11 make a new text "__match_args__", and keep it in the cache of
    attributes. Thousands of such texts displace each other, and what they displace is looked up again."""
    unnamed = [
        f"{name_of(source)}:{node.lineno}"
        for source in SOURCES
        for node in ast.walk(tree(source))
        if isinstance(node, ast.MatchClass) and node.patterns
    ]
    assert not unnamed, "write `case Key(name=name)`, and `str() as text` for `str(text)`"


def test_no_file_contains_a_path_of_this_machine() -> None:
    """Every clone of the repository has another path."""
    place = re.compile(rb"/" + rb"work\b")
    files = (path for path in ROOT.rglob("*") if not IGNORED_DIRECTORIES.intersection(path.relative_to(ROOT).parts))
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
