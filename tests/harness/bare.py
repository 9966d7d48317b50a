"""A virtual environment that contains only the wheel and the distributions that it declares.

The distributions are links to those of the tests' environment, so that no package index is used.
"""

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from harness.cluster_node import ClusterNode
from harness.datastores import Site
from harness.shim import ROOT


def build_wheel(folder: Path) -> Path:
    """Build the wheel, in the build directory of the editable installation, so that it compiles only what has changed.

    One process at a time: two builds in one directory disturb each other.
    """
    options = "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)
    with (ROOT / "pyproject.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run(sys.executable, "-m", "pip", "wheel", *options, str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path, wheel: Path) -> Path:
    """Return the directory of programs of a new environment with the wheel, without extras."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    pip = sys.executable, "-m", "pip", "--python", str(programs / "python")
    _run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    _link_requirements(_site(programs))
    return programs


@contextmanager
def with_extra(programs: Path, *extras: str) -> Iterator[None]:
    """Add the distributions of these extras inside the `with` block. They share no directory with those of the wheel."""
    site = _site(programs)
    before = set(site.iterdir())
    _link_requirements(site, *extras)
    yield
    for path in set(site.iterdir()) - before:  # with the compiled files that Python has written there
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _site(programs: Path) -> Path:
    base = str(programs.parent)
    return Path(sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base}))


def _link_requirements(site: Path, *extras: str) -> None:
    (metadata,) = site.glob("svc_cni-*.dist-info")
    for each in _closure(Distribution.at(metadata).requires or (), frozenset(extras)):
        _link(distribution(each), site)


def _closure(requirements: Iterable[str], extras: frozenset[str]) -> set[str]:
    """Return the names of all direct and indirect requirements. Raise AssertionError if a version does not match."""
    found: set[str] = set()
    waiting = list(_wanted(requirements, extras))
    while waiting:
        each = waiting.pop()
        here = distribution(each.name)
        assert each.specifier.contains(here.version, prereleases=True), f"{each}: {here.version} is installed"
        if each.name not in found:
            found.add(each.name)
            waiting += _wanted(here.requires or (), frozenset(each.extras))
    return found


def _wanted(requirements: Iterable[str], extras: frozenset[str]) -> Iterator[Requirement]:
    for each in map(Requirement, requirements):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield each


def _link(wanted: Distribution, site: Path) -> None:
    """Link each file. Programs of the distribution are left out."""
    for file in wanted.files or ():
        if ".." not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # some distributions install the same file
                target.symlink_to(Path(str(wanted.locate_file(file))))


class BareNode(ClusterNode):
    """A node whose commands are those of another environment."""

    def __init__(self, programs: Path, directory: Path, *sites: Site) -> None:
        self.programs = programs
        super().__init__(directory, "node1", *sites)

    def prepare(self, *arguments: str, stdin: str | None = None) -> None:
        self.svcctl(*arguments, stdin=stdin)


def _run(*command: str, check: bool = True, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done
