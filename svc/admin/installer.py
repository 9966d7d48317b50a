"""Install the executables in the container runtime's directory, with the records that they read, and uninstall them.

Deployments of several names share a directory, because the record of an executable has its name, with `.install` added. The
record also lists all installed files with their digests, and only unmodified files are removed. A file of another deployment
at the same path is kept beside, and put back.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from svc.admin.install_records import ANY, NONE, Others, digest_of, read_digests, record_paths
from svc.admin.originals import keep, original_of, put_back
from svc.atomic_file import File, remove, write
from svc.model.errors import CallerError, Code, PeerError
from svc.names import DEFAULT, Names
from svc.values import dataclass

MAX_RECORD_BYTES = 4096  # that the executable reads
MAX_SOCKET_BYTES = 107  # of the path

Outcome = tuple[Path, str]
"""A file, and what was done to it."""


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """Content of a record: the agent's socket and directories, the Python to run without an agent, and the names profile
    (empty: the names of svc)."""

    socket: Path
    python: Path
    state_dir: Path
    run_dir: Path
    profile: str = ""

    def record(self, digests: Mapping[Path, str]) -> bytes:
        """Return lines KEY=VALUE. Raise CallerError if the executable could not read them."""
        values = {"socket": self.socket, "python": self.python, "state_dir": self.state_dir, "run_dir": self.run_dir}
        lines = [(name, str(value)) for name, value in values.items()]
        lines += [("profile", self.profile)] if self.profile else []
        lines += [("file", f"{digest} {path}") for path, digest in digests.items()]
        for name, value in lines:
            if "\n" in value:
                raise CallerError(f"{name} {value!r} has a line break", details="choose another path")
        if len(os.fsencode(self.socket)) > MAX_SOCKET_BYTES:
            raise CallerError(
                f"socket {str(self.socket)!r} is longer than {MAX_SOCKET_BYTES} bytes", details="choose a shorter path"
            )
        data = b"".join(b"%s=%s\n" % (name.encode(), os.fsencode(value)) for name, value in lines)
        if len(data) > MAX_RECORD_BYTES:
            raise CallerError(f"the paths make {len(data)} bytes, over {MAX_RECORD_BYTES}", details="choose shorter paths")
        return data


def install(
    bin_dir: Path,
    executable: Path,
    names: Names,
    settings: InstallSettings,
    network: Sequence[File] = (),
    known: Mapping[Path, str] | None = None,
    others: Others = NONE,
) -> list[Outcome]:
    """Install records, executables, and then the network's files, because with them the runtime starts pods.

    `known` are the digests of all files that svc wrote, also of other installations. Return what was done to each file. Raise
    CallerError before anything is written, PeerError if a file cannot be written."""
    program = _read_executable(executable)
    files = [*(File(bin_dir / name, program, 0o755) for name in (names.ipam_plugin, names.plugin)), *network]
    own, *_ = record_paths(bin_dir, names)
    known = read_digests(own) if known is None else known
    placed = {file.path: ANY if file.renewed else digest_of(file.data) for file in files}
    record = settings.record(read_digests(own) | placed)
    # records before executables: an executable must never run with the record of another installation
    records = [File(path, record, 0o644) for path in record_paths(bin_dir, names)]
    try:
        for folder in dict.fromkeys(file.path.parent for file in (*records, *files)):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        originals = {file.path: keep(file, known.get(file.path)) for file in files}
        done = [(file.path, _write(file, originals.get(file.path))) for file in (*records, *files)]
        others.update(placed)
    except OSError as error:
        raise _refused("install into", bin_dir, error) from error
    return done


def uninstall(bin_dir: Path, names: Names, others: Others = NONE) -> list[Outcome]:
    """Remove the files that were installed under these names, the network's first, and put the originals back.

    Keep modified files, and those that other installations use. Return what was done to each file. Raise CallerError if nothing
    is installed, PeerError if a file cannot be removed."""
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


def find_executable() -> Path:
    """Return the executable that was installed with this Python. Raise CallerError if there is none."""
    name = DEFAULT.plugin
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
        raise CallerError(f"no executable {name!r} in {looked}", details="name it with --executable, or install the package")
    return found


def require_directories(directories: Mapping[str, Path | None]) -> None:
    """Raise CallerError if one of them, given by its option, is another kind of file, or lies below one."""
    for option, path in directories.items():
        if path is None:
            continue
        found = next((folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder)), None)
        if found and not found.is_dir():
            raise CallerError(
                f"{option} {str(path)!r} is not a directory: {str(found)!r} is another kind of file",
                details=f"name a directory with {option}, or move the file away",
                code=Code.IO_FAILURE,
            )


def _write(file: File, original: Path | None) -> str:
    outcome = "installed" if write(file) else "unchanged"
    return f"{outcome}; what was there is kept as {original.name}" if original else outcome


def _remove(path: Path, digest: str, others: Others) -> Outcome:
    try:
        present = digest_of(path.read_bytes())
    except FileNotFoundError:
        return path, "already absent"
    if others.uses(path):
        return path, "kept: other names or directories use it"
    if digest not in (present, ANY):
        original = original_of(path)
        return path, "kept (modified)" + (f"; {original.name} is the original" if original.exists() else "")
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
