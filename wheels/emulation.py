"""Run what other machines and C libraries get: python -m wheels.emulation [TARGET ...] [--wheels FOLDER].

The executables of every wheel answer a VERSION, and say that they have the version of the wheel; under qemu-user where they are
for another machine. The extensions of manylinux wheels for another machine are imported by a Python of that machine. Those of
musllinux wheels are inspected, because no distribution with musl is at hand: each symbol that they need must be one of Python
or of musl. Exit status: 0 all is well, 1 a wheel is wrong, or one whose name was given could not be tried, 2 wrong
use.
"""

import argparse
import io
import json
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile

from wheels.compiling import ROOT
from wheels.headers import Unavailable
from wheels.roots import root_with, run_in
from wheels.targets import MUSL, Target, add_targets, targets_of
from wheels.trial import wheel_of

_IMPORTS: Final = """
import importlib, platform, sys
sys.path.insert(0, "/trial/wheel")
for name in sys.argv[1:]:
    importlib.import_module(f"svc._core.{name}")
from svc._core.cidr import Address, Cidr
assert Address("10.0.0.7") in Cidr("10.0.0.0/29"), "wrong arithmetic"
print(platform.machine(), platform.python_version())
"""
_OF_PYTHON: Final = ("Py", "_Py")
_WEAK_OF_TOOLCHAIN: Final = {"_ITM_registerTMCloneTable", "_ITM_deregisterTMCloneTable", "__gmon_start__"}
_PROGRAMS: Final = ("svc", "svc-ipam")


def main() -> int:
    """Try the wheels that the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wheels.emulation", description=__doc__)
    add_targets(parser)
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheelhouse", help="folder of the wheels [wheelhouse]")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/roots", help="folder of root file systems [build/roots]")
    given = parser.parse_args()
    given.cache = given.cache.resolve()
    status = 0
    for target in targets_of(given.targets):
        found: list[str] = []
        try:
            found.extend(_try(target, wheel_of(target, given.wheels), given.cache))
        except Unavailable as error:
            found.append(f"the rest was not tried: {error}")
            status |= bool(given.targets)
        except (AssertionError, subprocess.CalledProcessError) as error:
            found.append(f"WRONG: {error}")
            status = 1
        print(f"{target}: {'; '.join(found)}", flush=True)
    return status


def _try(target: Target, wheel: Path, cache: Path) -> Iterator[str]:
    """Yield what was tried. Raise AssertionError at what is wrong."""
    emulator = _emulator(target.machine, cache)
    folder = cache / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in _PROGRAMS:
        (program,) = folder.glob(f"*.data/scripts/{name}")
        program.chmod(0o755)
        yield f"{name} {_version_of(program, emulator)}"
        _require_version(program, emulator, wheel)
    extensions = sorted((folder / "svc/_core").glob("*.so"))
    if target.library == MUSL:
        yield _symbols(extensions, root_with("3.13", target.machine, cache))
    elif target.machine != platform.machine():
        yield _imports(target, folder, extensions, emulator, cache)


def _version_of(program: Path, emulator: Path | None) -> str:
    """Return the newest CNI version of the reply to VERSION."""
    command = [str(word) for word in (emulator, program) if word]
    call, environment = '{"cniVersion":"1.1.0"}', {"CNI_COMMAND": "VERSION", "PATH": ""}
    done = subprocess.run(command, env=environment, input=call, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{program.name}: {done.stdout}{done.stderr}"
    return f"VERSION {json.loads(done.stdout)['supportedVersions'][-1]}"


def _require_version(program: Path, emulator: Path | None, wheel: Path) -> None:
    """Require that the program has the version of its wheel."""
    command = [str(word) for word in (emulator, program, "-v") if word]
    shown = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout.strip()
    version = wheel.name.split("-")[1]
    assert shown == version, f"{program.name} says that it is {shown}, in a wheel of {version}"


def _imports(target: Target, wheel: Path, extensions: list[Path], emulator: Path | None, cache: Path) -> str:
    """Import the extensions by the Python of their machine. Return what it says."""
    assert emulator is not None
    root = root_with(target.python, target.machine, cache)
    shutil.rmtree(root / "trial", ignore_errors=True)
    shutil.copytree(wheel, root / "trial/wheel")
    shutil.copy(emulator, root / "trial/emulator")
    names = [path.name.partition(".")[0] for path in extensions]
    done = run_in(root, [f"/usr/bin/python{target.python}", "-c", _IMPORTS, *names], emulator="/trial/emulator")
    assert not done.returncode, f"the extensions cannot be imported: {done.stdout}{done.stderr}"
    return f"{len(names)} extensions imported by {done.stdout.strip()}"


def _symbols(extensions: list[Path], root: Path) -> str:
    """Require each symbol of Python or of the musl in a root file system."""
    (library,) = root.glob("usr/lib/*-linux-musl/libc.so")
    offered = set(_names(library, is_wanted=False))
    for path in extensions:
        for name in _names(path, is_wanted=True):
            is_known = name in offered or name.startswith(_OF_PYTHON) or name in _WEAK_OF_TOOLCHAIN
            assert is_known, f"{path.name} needs {name}, which musl has not"
    return f"the symbols of {len(extensions)} extensions are those of Python and musl"


def _names(path: Path, *, is_wanted: bool) -> Iterator[str]:
    """Yield the dynamic symbols that a file wants, or those that it offers."""
    table = ELFFile(io.BytesIO(path.read_bytes())).get_section_by_name(".dynsym")
    for symbol in table.iter_symbols():
        if symbol.name and (symbol["st_shndx"] == "SHN_UNDEF") == is_wanted:
            yield symbol.name


def _emulator(machine: str, cache: Path) -> Path | None:
    """Return the program that runs those of a machine; None for this one. Raise Unavailable.

    Debian's package is only unpacked: installed, it would change how the kernel of this machine runs programs."""
    if machine == platform.machine():
        return None
    name = f"qemu-{machine}-static"
    if found := shutil.which(name):
        return Path(found)
    folder = cache / "qemu"
    if not folder.exists():
        draft = cache / "qemu.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        command = ["apt-get", "download", "qemu-user-static"]
        done = subprocess.run(command, cwd=draft, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"{name} is missing: install the package qemu-user-static ({done.stderr.strip()[-200:]})")
        (package,) = draft.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, draft], check=True)
        package.unlink()
        draft.rename(folder)
    return folder / "usr/bin" / name


if __name__ == "__main__":
    sys.exit(main())
