"""Putting the executables where the container runtime looks for them, with the record that they read.

Every file appears whole or not at all, and one that is the same already is left alone: a runtime may execute it meanwhile.
"""

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from svc.model.errors import CallerError, PeerError
from svc.names import Names

RECORD = "svc.install"  # beside the executables, which find it there whatever they are called

MAX_RECORD = 4096  # bytes, and below of a socket's path: what the executable reads
MAX_SOCKET = 107


@dataclass(frozen=True, slots=True)
class Installation:
    """What the record says: where the agent listens, what to run without it, where its files are."""

    socket: Path
    python: Path
    state_dir: Path
    run_dir: Path

    def record(self) -> bytes:
        """Lines key=value. CallerError when the executable could not read it."""
        values = {"socket": self.socket, "python": self.python, "state_dir": self.state_dir, "run_dir": self.run_dir}
        for name, value in values.items():
            if "\n" in str(value):
                raise CallerError(f"{name} {str(value)!r} has a line break", details="choose another path")
        if len(os.fsencode(self.socket)) > MAX_SOCKET:
            raise CallerError(f"socket {str(self.socket)!r} is longer than {MAX_SOCKET} bytes", details="choose a shorter path")
        data = b"".join(b"%s=%s\n" % (name.encode(), os.fsencode(value)) for name, value in values.items())
        if len(data) > MAX_RECORD:
            raise CallerError(f"the paths make {len(data)} bytes, over {MAX_RECORD}", details="choose shorter paths")
        return data


def install(bin_dir: Path, executable: Path, names: Names, installation: Installation) -> list[tuple[Path, bool]]:
    """Installs the executable under both names and the record; whether each file was written. CallerError, PeerError."""
    record, program = installation.record(), _read_executable(executable)
    files = ((names.plugin, program, 0o755), (names.ipam_plugin, program, 0o755), (RECORD, record, 0o644))
    try:
        bin_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        # the record first: an executable must never run beside the record of another installation
        return [(bin_dir / name, place(bin_dir / name, data, mode)) for name, data, mode in reversed(files)]
    except OSError as error:
        raise PeerError(
            f"cannot install into {str(bin_dir)!r}: {error}", details="have it writable, or choose another --bin-dir"
        ) from error


def find_executable() -> Path:
    """Our own, as it was installed with this Python. CallerError when there is none."""
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    found = next((folder / "svc" for folder in folders if (folder / "svc").is_file()), None)
    if found is None:
        looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
        raise CallerError(f"no executable 'svc' in {looked}", details="name it with --executable, or install the package")
    return found


def place(path: Path, data: bytes, mode: int) -> bool:
    """Makes a file have this content and mode, in one step that survives a power cut; False when it has already. OSError."""
    if _holds(path, data, mode):
        return False
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)  # a running executable keeps its old file: no ETXTBSY
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return True


def _holds(path: Path, data: bytes, mode: int) -> bool:
    try:
        return path.stat().st_mode & 0o7777 == mode and not path.is_symlink() and path.read_bytes() == data
    except FileNotFoundError:
        return False


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
