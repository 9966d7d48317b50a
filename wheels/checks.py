"""Check what is in a wheel, and with the tools that indexes and packagers use."""

import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from elftools.elf.elffile import ELFFile

from wheels.targets import GLIBC, MUSL, Target

MAX_BYTES: Final = 1_520_000  # Python sources alone have 1,102,000: see README.md
_MACHINES: Final = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_NEEDED: Final = {GLIBC: {"libc.so.6"}, MUSL: set[str]()}  # a repair of the wheel would have nothing to add
_SOURCES: Final = (".pyx", ".pxd", ".c", ".h")
_WANTED: Final = ("svc/py.typed", "svc/_core/bitmap.pyi", "svc/_core/cidr.pyi", "svc/_core/netns.pyi", "svc/_core/rtnl.pyi")
_LICENSES: Final = ("LICENSE", "COPYRIGHT.musl")
_PROGRAMS: Final = ("svc", "svc-ipam")
_SHAPE: Final = "W002,W009"  # two equal files, which the two executables are; several packages at the top, of which we have one


def problems(wheel: Path, target: Target) -> Iterator[str]:
    """Yield what is wrong with a wheel."""
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        yield f"it has {size} bytes, more than {MAX_BYTES}"
    with zipfile.ZipFile(wheel) as archive:
        yield from _content_problems(archive, target)
    yield from _tool_problems(wheel, target)


def _content_problems(archive: zipfile.ZipFile, target: Target) -> Iterator[str]:
    names = archive.namelist()
    yield from (f"{name} is missing" for name in _WANTED if name not in names)
    yield from (f"{name} is a source of the core" for name in names if PurePosixPath(name).suffix in _SOURCES)
    licenses = {PurePosixPath(name).name for name in names if "/licenses/" in name}
    yield from (f"the licence {name} is missing" for name in _LICENSES if name not in licenses)
    extensions = [name for name in names if name.endswith(".so")]
    if not extensions:
        yield "it has no extensions"
    for name in extensions:
        if not name.endswith(target.suffix):
            yield f"{name} has not the suffix {target.suffix}"
        elf = _elf(archive, name)
        yield from _machine_problems(name, elf, target)
        yield from (f"{name} needs {each}" for each in _libraries(elf) if each not in _NEEDED[target.library])
    programs = {PurePosixPath(name).name: name for name in names if ".data/scripts/" in name}
    for program in _PROGRAMS:
        if program not in programs:
            yield f"its scripts have no {program}"
            continue
        yield from _program_problems(program, _elf(archive, programs[program]), target)


def _elf(archive: zipfile.ZipFile, name: str) -> ELFFile | None:
    data = archive.read(name)
    return ELFFile(io.BytesIO(data)) if data.startswith(b"\x7fELF") else None


def _machine_problems(name: str, elf: ELFFile | None, target: Target) -> Iterator[str]:
    if elf is None:
        yield f"{name} is no ELF file"
        return
    if elf["e_machine"] != _MACHINES[target.machine]:
        yield f"{name} is for {elf['e_machine']}"
    if elf.get_section_by_name(".symtab") is not None:
        yield f"{name} is not stripped"


def _libraries(elf: ELFFile | None) -> Iterator[str]:
    dynamic = elf and elf.get_section_by_name(".dynamic")
    for tag in dynamic.iter_tags("DT_NEEDED") if dynamic else ():
        yield str(tag.needed)


def _program_problems(name: str, elf: ELFFile | None, target: Target) -> Iterator[str]:
    yield from _machine_problems(name, elf, target)
    if elf is not None and any(segment["p_type"] == "PT_INTERP" for segment in elf.iter_segments()):
        yield f"{name} is not static"


def sdist_problems(sdist: Path) -> Iterator[str]:
    """Yield what an index would refuse in a source distribution."""
    yield from _failures(["twine", "check", "--strict", str(sdist)])


def _tool_problems(wheel: Path, target: Target) -> Iterator[str]:
    yield from _failures(["twine", "check", "--strict", str(wheel)])
    yield from _failures(["check-wheel-contents", "--ignore", _SHAPE, str(wheel)])
    shown = _run(["auditwheel", "show", str(wheel)])
    if shown.returncode or f'"{target.platform}"' not in shown.stdout:
        yield f"auditwheel: {shown.stdout.strip() or shown.stderr.strip()}"


def _failures(command: list[str]) -> Iterator[str]:
    done = _run(command)
    if done.returncode:
        yield f"{command[0]}: {done.stdout.strip() or done.stderr.strip()}"


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).parent / command[0]
    return subprocess.run([str(program), *command[1:]], capture_output=True, text=True, check=False)
