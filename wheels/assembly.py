"""Put wheels together: the Python part of one, and the compiled parts of each target. Same inputs give same bytes."""

import base64
import hashlib
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from wheels.compiling import EXTENSIONS, METADATA, SCRIPTS
from wheels.targets import Target

_FILE, _PROGRAM = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755
_EARLIEST: Final = 315532800  # 1980-01-01, the first date of a ZIP file

Deflate = Callable[[bytes], bytes]  # to a raw DEFLATE stream


@dataclass(frozen=True)
class Member:
    """A file of a wheel."""

    data: bytes
    is_program: bool = False


def python_part(wheel: Path) -> dict[str, Member]:
    """Return what a wheel has for each machine: no extension, no executable, and nothing about either."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            is_compiled = path.suffix == ".so" or ".data" in path.parts[0]
            if not name.endswith("/") and not is_compiled and path.name not in ("RECORD", "WHEEL"):
                found[name] = Member(archive.read(name))
    return found


def information_folder(members: Mapping[str, Member]) -> str:
    """Return the name of the folder with the metadata."""
    return next(name.partition("/")[0] for name in members if name.endswith(".dist-info/METADATA"))


def version_in(information: str) -> str:
    """Return the version in the name of the folder with the metadata."""
    return information.removesuffix(".dist-info").rpartition("-")[2]


def wheel_name(information: str, target: Target) -> str:
    """Return the name of the file of a wheel, whose metadata is in a folder of a name."""
    return f"{information.removesuffix('.dist-info')}-{_tag(target)}.whl"


def compiled_part(stage: Path, information: str) -> Iterator[tuple[str, Member]]:
    """Yield the files that were compiled for a target, by their names in the wheel."""
    for path in (stage / EXTENSIONS).glob("*.so"):
        yield f"{EXTENSIONS}/{path.name}", Member(path.read_bytes(), is_program=True)
    for path in (stage / SCRIPTS).iterdir():
        yield f"{information.removesuffix('.dist-info')}.data/scripts/{path.name}", Member(path.read_bytes(), is_program=True)
    if (stage / METADATA).exists():
        for path in (stage / METADATA).iterdir():
            yield f"{information}/{path.name}", Member(path.read_bytes())


def write_wheel(members: Mapping[str, Member], target: Target, folder: Path, epoch: int, deflate: Deflate) -> Path:
    """Write a wheel, and return its path. `epoch` is the date of its files (Unix time)."""
    information = information_folder(members)
    lines = ("Wheel-Version: 1.0", "Generator: svc wheels", "Root-Is-Purelib: false", f"Tag: {_tag(target)}")
    members = {**members, f"{information}/WHEEL": Member("".join(f"{line}\n" for line in lines).encode())}
    record = "".join(_row(name, member) for name, member in sorted(members.items())) + f"{information}/RECORD,,\n"
    members = {**members, f"{information}/RECORD": Member(record.encode())}
    path = folder / wheel_name(information, target)
    date = time.gmtime(max(epoch, _EARLIEST))[:6]
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in sorted(members.items(), key=lambda each: (".dist-info/" in each[0], each[0])):
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (_PROGRAM if member.is_program else _FILE) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                file._compressor = _Deflated(deflate)  # type: ignore[attr-defined]  # zipfile takes no other one
                file.write(member.data)
    return path


class _Deflated:
    """A compressor, in the form that zipfile expects, of one write."""

    def __init__(self, deflate: Deflate) -> None:
        self.compress = deflate

    def flush(self) -> bytes:
        return b""


def _tag(target: Target) -> str:
    return f"{target.tag}-{target.tag}-{target.platform}"


def _row(name: str, member: Member) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(member.data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(member.data)}\n"
