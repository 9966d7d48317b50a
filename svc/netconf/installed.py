"""Record of the files that `svcctl install` wrote for a state directory: executables, names profile and network list.

`svcctl` finds its datastore in it; the agent finds the datastores and features of its networks. The file is
`STATE_DIR/installed.json`, mode 0600, replaced atomically, with one entry for each names profile and directory of executables.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from svc.atomic_file import File, remove, remove_drafts, write
from svc.model.errors import CallerError, Code, PeerError, SvcError, reason_of
from svc.names import Names
from svc.netconf.names_profiles import load_profile
from svc.netconf.netconf import NetConf
from svc.netconf.networklist import read_netconf
from svc.private_directory import create_directories
from svc.values import asdict, dataclass, replace

FILE_NAME: Final = "installed.json"
_VERSION: Final = 1
_REPAIR: Final = "remove the file, and repeat `svcctl install --bin-dir DIR --conf-dir DIR`"


@dataclass(frozen=True, slots=True)
class Installed:
    """The files of one installation. `profile` is empty for the names of svc.

    `network_list` is empty if none was written. `host_network_list` is the path of the same file on the host, if the
    installer ran in a container that mounts the directory elsewhere."""

    profile: str
    bin_dir: str
    executables: tuple[str, ...]
    network_list: str = ""
    host_network_list: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.profile, os.path.realpath(self.bin_dir)

    def find_list(self) -> Path | None:
        """Return the path of the network list if it exists here, else its path on the host; None if none was written."""
        paths = [Path(path) for path in (self.network_list, self.host_network_list) if path]
        return next((path for path in paths if path.exists()), paths[-1] if paths else None)


@dataclass(frozen=True, slots=True)
class InstalledNetwork:
    """A network list that an installation wrote, with its present content. `bin_dir` has the executables, and other plugins."""

    path: Path
    profile: str
    names: Names
    netconf: NetConf
    bin_dir: str = ""


def read_installed(state_dir: Path) -> tuple[Installed, ...]:
    """Return all entries; none if the file does not exist. Raise CallerError if it is damaged, PeerError if unreadable."""
    path = state_dir / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != _VERSION:
            raise CallerError(
                f"record {str(path)!r} has version {document['version']!r}", details="use the version of svc that wrote it"
            )
        return tuple(_entry(entry) for entry in document["installations"])
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise PeerError(f"record {str(path)!r} cannot be read: {error.strerror}", details="run this as root") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CallerError(f"record {str(path)!r} is damaged: {error}", details=_REPAIR, code=Code.DECODING_FAILURE) from None


def add_installed(state_dir: Path, added: Installed) -> bool:
    """Write an entry, replacing an earlier one of the same profile and directory. Return False if the file is unchanged.

    If the new entry has no network list, that of the earlier entry stays. Create the state directory if necessary. Raise
    PeerError if the file cannot be written, CallerError if it is damaged.
    """
    with _changing(state_dir):
        present = {entry.key: entry for entry in read_installed(state_dir)}
        earlier = present.get(added.key)
        if earlier and not added.network_list:
            added = replace(added, network_list=earlier.network_list, host_network_list=earlier.host_network_list)
        return _write(state_dir, [*(present | {added.key: added}).values()])


def remove_installed(state_dir: Path, profile: str, bin_dir: str) -> bool:
    """Remove the entry of an installation in a resolved directory, if it exists. Raise the errors of `add_installed`.

    Remove the file with the last entry, and return whether it was removed."""
    path = state_dir / FILE_NAME
    if not path.exists():
        return False
    with _changing(state_dir):
        left = [entry for entry in read_installed(state_dir) if entry.key != (profile, bin_dir)]
        if left:
            _write(state_dir, left)
        else:
            remove(path)
    return not left


def read_networks(state_dir: Path) -> tuple[list[InstalledNetwork], list[SvcError]]:
    """Return every usable installed network list, and the error of each other one. Raise the errors of `read_installed`."""
    networks: list[InstalledNetwork] = []
    errors: list[SvcError] = []
    for entry in read_installed(state_dir):
        if (path := entry.find_list()) is None:
            continue
        try:
            names = load_profile(entry.profile)
            networks.append(InstalledNetwork(path, entry.profile, names, read_netconf(path, names), entry.bin_dir))
        except SvcError as error:
            errors.append(error)
    return networks, errors


def _entry(data: dict[str, Any]) -> Installed:
    """Return the entry. Raise ValueError, KeyError or TypeError if a field is missing or of another type."""
    entry = Installed(
        data["profile"], data["bin_dir"], tuple(data["executables"]), data["network_list"], data["host_network_list"]
    )
    texts = (entry.profile, entry.bin_dir, *entry.executables, entry.network_list, entry.host_network_list)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a field is not a string")
    return entry


def _write(state_dir: Path, entries: Sequence[Installed]) -> bool:
    document = {"version": _VERSION, "installations": [asdict(entry) for entry in entries]}
    return write(File(state_dir / FILE_NAME, json.dumps(document, indent=2).encode() + b"\n", 0o600))


@contextmanager
def _changing(state_dir: Path) -> Iterator[None]:
    """Lock the directory, so that concurrent installers do not lose an entry."""
    try:
        create_directories(state_dir, 0o700)
        descriptor = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
            remove_drafts([state_dir / FILE_NAME])
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PeerError(
            f"cannot record the installation in {str(state_dir)!r}: {reason_of(error)}",
            details="make the directory writable, or choose another --state-dir",
            code=Code.IO_FAILURE,
        ) from error
