"""Install the executables in the container runtime's directory, with the records that they read, and uninstall them.

Deployments of several names share a directory, because the record of an executable has its name, with `.install` added. The
record also lists all installed files with their digests, and only unmodified files are removed.

Files of other deployments at the same paths are kept beside, and put back. The first one of a path is the original:
`NAME.before-svc`. What another program writes there later, and a network list that was edited, is kept as
`NAME.replaced-DIGEST`. Runtimes read neither name. An installation that was killed may have left a `NAME.before-svc`: then
what is there now is the original.
"""

import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from svc.admin import install_records
from svc.admin.file_changes import FileChanges, undone_if_failed
from svc.admin.install_records import ANY, NO_DIGEST, OtherInstallations, digest_of, read_digests, record_paths
from svc.atomic_file import File, remove, remove_drafts, sync
from svc.cni.install_record import END
from svc.model.errors import CallerError, Code, PeerError, reason_of
from svc.names import DEFAULT, Names
from svc.netconf.networklist import read_file, type_of
from svc.private_directory import UnsafeDirectory, require_safe
from svc.values import asdict, dataclass

MAX_RECORD_BYTES = 4096  # that the executable reads
MAX_SOCKET_BYTES = 107  # of the path
_EXECUTABLE: Final = b": CNI plugin, spec versions "  # the text that each version of the executable has
_UNIT: Final = b"# Written by `svcctl install --systemd`."

Outcome = tuple[Path, str]
"""A file, and what was done to it."""


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """Content of a record: socket and directories of the agent, Python for calls without it, names profile (empty: svc's).

    With `wait`, calls without an agent wait for one for so many seconds, and run no Python.
    """

    socket: Path
    python: Path
    state_dir: Path
    run_dir: Path
    profile: str = ""
    wait: int = 0

    def record(self, digests: Mapping[Path, str]) -> bytes:
        """Return lines KEY=VALUE. Raise CallerError if the executable could not read them."""
        lines = [(name, str(value)) for name, value in asdict(self).items() if value]
        lines += [("file", f"{digest} {path}") for path, digest in digests.items()]
        for name, value in lines:
            if "\n" in value:
                raise CallerError(f"{name} {value!r} has a line break", details="choose another path")
        if len(os.fsencode(self.socket)) > MAX_SOCKET_BYTES:
            raise CallerError(
                f"socket {str(self.socket)!r} is longer than {MAX_SOCKET_BYTES} bytes", details="choose a shorter path"
            )
        data = b"".join(os.fsencode(f"{name}={value}\n") for name, value in [*lines, END])
        if len(data) > MAX_RECORD_BYTES:
            raise CallerError(f"the paths make {len(data)} bytes, over {MAX_RECORD_BYTES}", details="choose shorter paths")
        return data


def install(
    bin_dir: Path,
    executable: Path,
    names: Names,
    settings: InstallSettings,
    network: Sequence[File] = (),
    prepare: Callable[[], None] = lambda: None,
    finish: Callable[[], list[Outcome]] = list,
) -> list[Outcome]:
    """Install records, executables, and then the network's files, because with them the runtime starts pods.

    Call `prepare` when all is valid, before the first file, and `finish` after the last one. Return what was done to each file.
    Raise CallerError, or an error of `prepare`, before a file is written, PeerError if a file cannot be written. Undo what was
    written then, and after an error of `finish`."""
    program = _read_executable(executable)
    files = [*(File(bin_dir / name, program, 0o755) for name in (names.ipam_plugin, names.plugin)), *network]
    own, *_ = record_paths(bin_dir, names)
    written = {file.path: ANY if file.renewed else digest_of(file.data) for file in files}
    listed = install_records.known_digests(bin_dir, names)
    record = settings.record(listed | written)
    known = install_records.known_files(settings.state_dir, own) | listed
    if any(map(install_records.damage_of, record_paths(bin_dir, names))):  # originals are listed
        known = {file.path: NO_DIGEST for file in files} | known
    # records before executables: an executable must never run with the record of another installation
    records = [File(path, record, 0o644) for path in record_paths(bin_dir, names)]
    is_complete = install_records.is_complete(settings.state_dir, settings.profile, bin_dir)
    others = install_records.other_installations(settings.state_dir, settings.profile, bin_dir)
    prepare()
    with undone_if_failed() as changes:
        for path in [file.path for file in (*records, *files)]:
            with _installing(path, bin_dir):
                changes.create_directories(path.parent)
        originals = dict[Path, Path | None]()
        for file in files:
            with _installing(file.path, bin_dir):
                originals[file.path] = _keep(changes, file, known.get(file.path), is_complete=is_complete)
        done = [_write(changes, file, originals.get(file.path), bin_dir) for file in (*records, *files)]
        for file in others.updated(written):
            _write(changes, file, None, bin_dir)
        done += finish()
    remove_drafts([file.path for file in (*records, *files)])
    return done


def uninstall(bin_dir: Path, names: Names, others: OtherInstallations) -> list[Outcome]:
    """Remove the files that were installed under these names, the network's first, and put the originals back.

    Keep modified files, and those that other installations use. Return what was done to each file. Raise CallerError if nothing
    is installed, or if the record is damaged, PeerError if a file cannot be removed."""
    own, other = record_paths(bin_dir, names)
    digests, used = read_digests(own), others.digests
    if own.exists() and (not digests or install_records.damage_of(own)):
        msg = f"record {str(own)!r} is damaged: it does not list all installed files"
        raise CallerError(msg, details="repeat `svcctl install` with the same options, which writes it again, and then this")
    if not digests:
        raise CallerError(f"nothing is installed as {names.plugin!r} in {str(bin_dir)!r}", details="see --bin-dir and --names")
    try:
        done = [(path, _remove(path, digest, is_used=path in used)) for path, digest in reversed(digests.items())]
        done += [(path, "put back: the original") for path in digests if _put_back(path)]
        for record in (path for path in (other, own) if path not in others.records):
            remove(record)
            done.append((record, "removed"))
    except OSError as error:
        details = "have its directory writable, and the file not immutable (lsattr); then repeat this"
        raise PeerError(f"cannot uninstall from {str(bin_dir)!r}: {reason_of(error)}", details=details) from error
    remove_drafts([*digests, own, other])
    return done


def find_executable() -> Path:
    """Return the executable that was installed with this Python. Raise CallerError if it does not exist."""
    name = DEFAULT.plugin
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
        raise CallerError(f"no executable {name!r} in {looked}", details="name it with --executable, or install the package")
    return found


def require_directories(directories: Mapping[str, Path | None]) -> None:
    """Raise CallerError if one of them, given by its option, is another kind of file, or lies below one.

    Raise it also if the agent would refuse its state or run directory."""
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
        try:
            if option in ("--state-dir", "--run-dir"):
                require_safe(path)
        except UnsafeDirectory as error:
            msg = f"{option} {str(path)!r} cannot be used: {error.strerror}"
            raise CallerError(msg, details=error.fix, code=Code.IO_FAILURE) from error


def require_own_list(path: Path, recorded: str | None, names: Names) -> None:
    """Raise CallerError if another program wrote the network list at a path. The user must decide what to do with it."""
    data = read_file(path) if path.exists() and recorded != NO_DIGEST else None
    if data is None or recorded == digest_of(data) or _is_own(data):
        return
    kinds = [str(plugin.get("datastore_type") or "") for plugin in _plugins(data) if type_of(plugin) == names.plugin]
    datastore = f"datastore {kinds[0]!r}" if any(kinds) else "no datastore that can be read from it"
    raise CallerError(
        f"network list {str(path)!r} is of another deployment, with {datastore}",
        details=f"to take it over, repeat this with --netconf and a file that has its settings, such as --netconf {path}; "
        f"the list is then kept as {_original_of(path).name} until `svcctl uninstall`. Else move it away",
    )


def _keep(changes: FileChanges, file: File, recorded: str | None, *, is_complete: bool) -> Path | None:
    """Keep what `file` will replace, unless svc wrote it with the digest `recorded`; return the name of the copy, or None.

    `is_complete` says that an earlier installation has ended. Else nothing was replaced yet. Raise OSError."""
    try:
        data = file.path.read_bytes()
    except FileNotFoundError:
        if not file.path.is_symlink():
            return None
        data = b""  # it leads nowhere
    if data == file.data or _EXECUTABLE in data or recorded in (ANY, digest_of(data)):
        return None
    kept = _original_of(file.path)
    if _is_own(data) or (recorded is not None and is_complete):
        kept = _replaced_name(file.path, data)
    elif os.path.lexists(kept) and not _is_same_file(kept, file.path):
        changes.rename(kept, _replaced_name(file.path, b"" if kept.is_symlink() else kept.read_bytes()))
    if not os.path.lexists(kept):
        changes.link(file.path, kept)  # the file itself stays where a runtime finds it
        sync(kept.parent)
    return kept


def _is_same_file(path: Path, other: Path) -> bool:
    return os.path.samestat(path.lstat(), other.lstat())


def _replaced_name(path: Path, data: bytes) -> Path:
    return path.with_name(f"{path.name}.replaced-{digest_of(data)}")


def _put_back(path: Path) -> bool:
    """Put the original back if there is one and its path is free; return whether it was. Raise OSError."""
    original = _original_of(path)
    if not os.path.lexists(original) or os.path.lexists(path):
        return False
    original.rename(path)
    sync(path.parent)
    return True


def _original_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.before-svc")


def _is_own(data: bytes) -> bool:
    """Return whether svc wrote this, possibly edited by a user since."""
    return data.startswith(_UNIT) or any(type_of(plugin) == DEFAULT.plugin for plugin in _plugins(data))


def _plugins(data: bytes) -> list[dict[str, object]]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return []
    plugins = document.get("plugins") if isinstance(document, dict) else None
    return [plugin for plugin in plugins if isinstance(plugin, dict)] if isinstance(plugins, list) else []


def _write(changes: FileChanges, file: File, original: Path | None, bin_dir: Path) -> Outcome:
    with _installing(file.path, bin_dir):
        outcome = "installed" if changes.write(file) else "unchanged"
    return file.path, f"{outcome}; what was there is kept as {original.name}" if original else outcome


def _remove(path: Path, digest: str, *, is_used: bool) -> str:
    try:
        present = digest_of(path.read_bytes())
    except FileNotFoundError:
        return "already absent"
    if is_used:
        return "kept: other names or directories use it"
    if digest not in (present, ANY):
        original = _original_of(path)
        return "kept (modified)" + (f"; {original.name} is the original" if original.exists() else "")
    remove(path)
    return "removed"


@contextmanager
def _installing(path: Path, bin_dir: Path) -> Iterator[None]:
    """Raise PeerError that names the file and the option of its directory, if the block raises OSError."""
    try:
        yield
    except OSError as error:
        option = "--bin-dir" if path.parent == bin_dir else "--unit-dir" if path.suffix == ".service" else "--conf-dir"
        writable = f"have {path.parent} writable, with free space and no immutable file (lsattr)"
        remedy = "move it away" if path.is_dir() else writable
        msg = f"cannot install {str(path)!r}: {error.strerror or error}"
        details = f"{remedy}, or choose another {option}: what was written is undone"
        raise PeerError(msg, details=details, code=Code.IO_FAILURE) from error


def _read_executable(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        details = "name it with --executable"
        raise CallerError(f"cannot read executable {str(path)!r}: {error.strerror}", details=details) from None
    if not data.startswith(b"\x7fELF") or _EXECUTABLE not in data:
        raise CallerError(f"{str(path)!r} is not an executable of svc", details="name the one that was built with --executable")
    return data
