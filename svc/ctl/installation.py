"""Putting the executables where the container runtime looks for them, with the records that they read, and taking them away.

A record stands beside each executable, under its name with `.install` behind it, so deployments of several names share a
directory. It says besides what was installed, with a digest of each file: only what is still the same is ever removed.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from svc.model.errors import CallerError, PeerError
from svc.names import DEFAULT, Names
from svc.placing import File, place, remove

MAX_RECORD = 4096  # bytes, and below of a socket's path: what the executable reads
MAX_SOCKET = 107
_DIGITS = 16  # of a digest: it tells versions of a file apart, not forgeries
_ANY = "-"  # in place of the digest of a file that is renewed

Outcome = tuple[Path, str]


@dataclass(frozen=True, slots=True)
class Installation:
    """What a record says: where the agent listens, what to run without it, where its files are, and its names profile (empty:
    our own names)."""

    socket: Path
    python: Path
    state_dir: Path
    run_dir: Path
    profile: str = ""

    def record(self, digests: Mapping[Path, str]) -> bytes:
        """Lines key=value. CallerError when the executable could not read it."""
        values = {"socket": self.socket, "python": self.python, "state_dir": self.state_dir, "run_dir": self.run_dir}
        lines = [(name, str(value)) for name, value in values.items()]
        lines += [("profile", self.profile)] if self.profile else []
        lines += [("file", f"{digest} {path}") for path, digest in digests.items()]
        for name, value in lines:
            if "\n" in value:
                raise CallerError(f"{name} {value!r} has a line break", details="choose another path")
        if len(os.fsencode(self.socket)) > MAX_SOCKET:
            raise CallerError(f"socket {str(self.socket)!r} is longer than {MAX_SOCKET} bytes", details="choose a shorter path")
        data = b"".join(b"%s=%s\n" % (name.encode(), os.fsencode(value)) for name, value in lines)
        if len(data) > MAX_RECORD:
            raise CallerError(f"the paths make {len(data)} bytes, over {MAX_RECORD}", details="choose shorter paths")
        return data


def install(
    bin_dir: Path, executable: Path, names: Names, installation: Installation, network: Sequence[File] = ()
) -> list[Outcome]:
    """Installs records, executables and then the network's files, whose presence makes a runtime start pods; what became of
    each. CallerError, before anything is written; PeerError."""
    program = _read_executable(executable)
    files = [*(File(bin_dir / name, program, 0o755) for name in (names.ipam_plugin, names.plugin)), *network]
    own, *_ = record_paths(bin_dir, names)
    digests = _recorded(own) | {file.path: _ANY if file.renewed else _digest(file.data) for file in files}
    record = installation.record(digests)
    # the records first: an executable must never run beside the record of another installation
    files = [*(File(path, record, 0o644) for path in record_paths(bin_dir, names)), *files]
    try:
        for folder in dict.fromkeys(file.path.parent for file in files):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        return [(file.path, "installed" if place(file) else "unchanged") for file in files]
    except OSError as error:
        raise _refused("install into", bin_dir, error) from error


def uninstall(bin_dir: Path, names: Names) -> list[Outcome]:
    """Removes what was installed under these names, the network's files first; what was changed since is kept. CallerError when
    nothing is installed, PeerError."""
    own, other = record_paths(bin_dir, names)
    digests = _recorded(own)
    if not digests:
        raise CallerError(f"nothing is installed as {names.plugin!r} in {str(bin_dir)!r}", details="see --bin-dir and --names")
    try:
        done = [_remove(path, digest) for path, digest in reversed(digests.items())]
        for record in (other, own):
            remove(record)
    except OSError as error:
        raise _refused("uninstall from", bin_dir, error) from error
    return [*done, *((record, "removed") for record in (other, own))]


def record_paths(bin_dir: Path, names: Names) -> tuple[Path, Path]:
    """Of the plugin and of the IPAM plugin."""
    return bin_dir / f"{names.plugin}.install", bin_dir / f"{names.ipam_plugin}.install"


def recorded_state_dir(bin_dir: Path, names: Names) -> Path | None:
    """Return the state directory of the executables that are installed under these names; None without a record. PeerError."""
    return next((Path(value) for key, value in _lines(record_paths(bin_dir, names)[0]) if key == "state_dir"), None)


def find_executable() -> Path:
    """Our own, as it was installed with this Python. CallerError when there is none."""
    name = DEFAULT.plugin
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
        raise CallerError(f"no executable {name!r} in {looked}", details="name it with --executable, or install the package")
    return found


def _recorded(record: Path) -> dict[Path, str]:
    """The files that a record lists, with their digests."""
    return {Path(path): digest for key, value in _lines(record) if key == "file" for digest, _, path in [value.partition(" ")]}


def _lines(record: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = os.fsdecode(record.read_bytes()).split("\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refused("read the record in", record.parent, error) from error
    for line in lines:
        key, sign, value = line.partition("=")
        if sign:
            yield key, value


def _remove(path: Path, digest: str) -> Outcome:
    try:
        present = _digest(path.read_bytes())
    except FileNotFoundError:
        return path, "gone already"
    if digest not in (present, _ANY):
        return path, "kept: it was changed since"
    remove(path)
    return path, "removed"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _refused(what: str, folder: Path, error: OSError) -> PeerError:
    return PeerError(f"cannot {what} {str(folder)!r}: {error}", details="have it writable, or choose another --bin-dir")


def _read_executable(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CallerError(
            f"cannot read executable {str(path)!r}: {error.strerror}", details="name it with --executable"
        ) from None
    if not data.startswith(b"\x7fELF"):
        raise CallerError(f"{str(path)!r} is no native executable", details="name the one that was built with --executable")
    return data
