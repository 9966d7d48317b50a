"""Check what is in a wheel, and with the tools that indexes and packagers use."""

import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from elftools.elf.elffile import ELFFile

from wheels.targets import Target

MAX_BYTES: Final = 1_600_000
_MACHINES: Final = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
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
        yield from _machine_problems(name, _elf(archive, name), target)
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
    elif elf["e_machine"] != _MACHINES[target.machine]:
        yield f"{name} is for {elf['e_machine']}"


def _program_problems(name: str, elf: ELFFile | None, target: Target) -> Iterator[str]:
    yield from _machine_problems(name, elf, target)
    if elf is None:
        return
    if any(segment["p_type"] == "PT_INTERP" for segment in elf.iter_segments()):
        yield f"{name} is not static"
    if elf.get_section_by_name(".symtab") is not None:
        yield f"{name} is not stripped"


def _tool_problems(wheel: Path, target: Target) -> Iterator[str]:
    commands = [["twine", "check", "--strict", str(wheel)], ["check-wheel-contents", "--ignore", _SHAPE, str(wheel)]]
    for command in commands:
        done = _run(command)
        if done.returncode:
            yield f"{command[0]}: {done.stdout.strip() or done.stderr.strip()}"
    shown = _run(["auditwheel", "show", str(wheel)])
    if shown.returncode or f'"{target.platform}"' not in shown.stdout:
        yield f"auditwheel: {shown.stdout.strip() or shown.stderr.strip()}"


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).parent / command[0]
    return subprocess.run([str(program), *command[1:]], capture_output=True, text=True, check=False)
