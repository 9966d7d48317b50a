"""Putting the executables where the container runtime looks for them, with the records that they read, and taking them away.

A record stands beside each executable, under its name with `.install` behind it, so deployments of several names share a
directory. It says besides what was installed, with a digest of each file: only what is still the same is ever removed. A file
of another deployment that stood there is kept beside and put back.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from svc.ctl.originals import keep, original_of, put_back
from svc.ctl.records import ANY, NONE, Others, digest_of, read_digests, record_paths
from svc.model.errors import CallerError, PeerError
from svc.names import DEFAULT, Names
from svc.placing import File, place, remove
from svc.values import dataclass

MAX_RECORD = 4096  # bytes, and below of a socket's path: what the executable reads
MAX_SOCKET = 107

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
    bin_dir: Path,
    executable: Path,
    names: Names,
    installation: Installation,
    network: Sequence[File] = (),
    known: Mapping[Path, str] | None = None,
    others: Others = NONE,
) -> list[Outcome]:
    """Installs records, executables and then the network's files, whose presence makes a runtime start pods; what became of
    each. `known` are the files that svc wrote, of this and of other installations. CallerError, before anything is written;
    PeerError."""
    program = _read_executable(executable)
    files = [*(File(bin_dir / name, program, 0o755) for name in (names.ipam_plugin, names.plugin)), *network]
    own, *_ = record_paths(bin_dir, names)
    known = read_digests(own) if known is None else known
    placed = {file.path: ANY if file.renewed else digest_of(file.data) for file in files}
    record = installation.record(read_digests(own) | placed)
    # the records before the executables: one must never run beside the record of another installation
    records = [File(path, record, 0o644) for path in record_paths(bin_dir, names)]
    try:
        for folder in dict.fromkeys(file.path.parent for file in (*records, *files)):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        originals = {file.path: keep(file, known.get(file.path)) for file in files}
        done = [(file.path, _place(file, originals.get(file.path))) for file in (*records, *files)]
        others.update(placed)
    except OSError as error:
        raise _refused("install into", bin_dir, error) from error
    return done


def uninstall(bin_dir: Path, names: Names, others: Others = NONE) -> list[Outcome]:
    """Removes what was installed under these names, the network's files first, and puts the originals back; what was changed
    since is kept, and what other installations use. CallerError when nothing is installed, PeerError."""
    own, other = record_paths(bin_dir, names)
    digests = read_digests(own)
    if not digests:
        raise CallerError(f"nothing is installed as {names.plugin!r} in {str(bin_dir)!r}", details="see --bin-dir and --names")
    try:
        done = [_remove(path, digest, others) for path, digest in reversed(digests.items())]
        done += [(path, "put back: the original") for path in digests if put_back(path)]
        for record in (other, own):
            remove(record)
    except OSError as error:
        raise _refused("uninstall from", bin_dir, error) from error
    return [*done, *((record, "removed") for record in (other, own))]


def _place(file: File, original: Path | None) -> str:
    outcome = "installed" if place(file) else "unchanged"
    return f"{outcome}; what was there is kept as {original.name}" if original else outcome


def find_executable() -> Path:
    """Our own, as it was installed with this Python. CallerError when there is none."""
    name = DEFAULT.plugin
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
        raise CallerError(f"no executable {name!r} in {looked}", details="name it with --executable, or install the package")
    return found


def _remove(path: Path, digest: str, others: Others) -> Outcome:
    try:
        present = digest_of(path.read_bytes())
    except FileNotFoundError:
        return path, "already absent"
    if others.uses(path):
        return path, "kept: other names or directories use it"
    if digest not in (present, ANY):
        original = original_of(path)
        return path, "kept: it was changed since" + (f"; {original.name} is the original" if original.exists() else "")
    remove(path)
    return path, "removed"


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
