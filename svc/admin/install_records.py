"""The records `NAME.install` beside the executables: the files of an installation, with their digests.

The executable reads from its record where the agent listens, and which Python to run without one.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.atomic_file import File
from svc.cni.install_record import MAX_WAIT_SECONDS, require_whole
from svc.deploy.systemd import ROUTES_MARK
from svc.model.errors import PeerError, SvcError
from svc.names import Names
from svc.netconf.installed import Installed, read_installed
from svc.netconf.names_profiles import load_profile
from svc.values import dataclass

ANY: Final = "-"  # in place of the digest of a file that is renewed
NO_DIGEST: Final = ""  # in place of the digest of a file that is listed without one
_DIGITS: Final = 16  # of a digest: it tells versions of a file apart, not forgeries


@dataclass(frozen=True, slots=True)
class OtherInstallations:
    """The installations for a state directory, except one."""

    entries: Sequence[Installed]

    @property
    def records(self) -> list[Path]:
        """Return the paths of their records, whether or not they exist."""
        return [_normalized(f"{executable}.install") for entry in self.entries for executable in entry.executables]

    @property
    def digests(self) -> dict[Path, str]:
        """Return all files that they list. Raise PeerError if a record cannot be read."""
        return {path: digest for record in self.records for path, digest in read_digests(record).items()}

    def updated(self, digests: Mapping[Path, str]) -> Iterator[File]:
        """Yield their records with the new digests of files that they list too. Raise PeerError."""
        for record in self.records:
            lines = list(read_lines(record))
            updated = [_updated(key, value, digests) for key, value in lines]
            if updated != lines:
                yield File(record, b"".join(os.fsencode(f"{key}={value}\n") for key, value in updated), 0o644)

    def socket(self, run_dir: Path) -> Path | None:
        """Return the recorded socket of the agent of a run directory; None if they record none."""
        for values in (dict(read_lines(record)) for record in self.records):
            if is_same(values.get("run_dir", ""), run_dir) and "socket" in values:
                return Path(values["socket"])
        return None

    def names(self) -> Iterator[Names]:
        """Yield the names of each names profile. Skip a profile that cannot be read."""
        for entry in self.entries:
            with suppress(SvcError):
                yield load_profile(entry.profile)

    def units(self) -> list[Path]:
        """Return the systemd units of agents that they have installed and that still exist."""
        found = (path for path in self.digests if path.suffix == ".service" and ROUTES_MARK not in path.name)
        return [path for path in found if path.exists()]


def other_installations(state_dir: Path, profile: str, bin_dir: Path) -> OtherInstallations:
    """Return all installations but that of a profile in a resolved directory. Raise the errors of `read_installed`."""
    return OtherInstallations([entry for entry in read_installed(state_dir) if entry.key != (profile, str(bin_dir))])


def is_complete(state_dir: Path, profile: str, bin_dir: Path) -> bool:
    """Return whether an installation of a profile in a directory has ended. Raise the errors of `read_installed`."""
    return any(entry.key == (profile, os.path.realpath(bin_dir)) for entry in read_installed(state_dir))


def known_files(state_dir: Path, own: Path) -> dict[Path, str]:
    """Return every file that svc wrote, with its digest: those of the record `own` and those of the state directory."""
    entries = read_installed(state_dir)
    names = [name for entry in entries for name in (*entry.executables, entry.network_list) if name]
    return {_normalized(name): NO_DIGEST for name in names} | OtherInstallations(entries).digests | read_digests(own)


def known_digests(bin_dir: Path, names: Names) -> dict[Path, str]:
    """Return the files that the records of the executables list, which are the same if none is damaged."""
    own, other = record_paths(bin_dir, names)
    return read_digests(other) | read_digests(own)


def record_paths(bin_dir: Path, names: Names) -> tuple[Path, Path]:
    """Return the paths of the plugin's and the IPAM plugin's record."""
    return bin_dir / f"{names.plugin}.install", bin_dir / f"{names.ipam_plugin}.install"


def recorded_settings(bin_dir: Path, names: Names) -> dict[str, str]:
    """Return the settings in the record of the executables; none without a record. Raise PeerError if it cannot be read.

    Both records have them: a damaged one does not count beside a whole one."""
    records = record_paths(bin_dir, names)
    return dict(read_lines(next((each for each in records if each.exists() and damage_of(each) is None), records[0])))


def damage_of(record: Path) -> PeerError | None:
    """Return what the executable of a record would say of it if it is damaged; None if it is whole or cannot be read."""
    try:
        require_whole(str(record), os.fsdecode(record.read_bytes()))
    except OSError:
        return None
    except PeerError as error:
        return error
    return None


def repairs(bin_dir: Path, names: Names) -> Iterator[str]:
    """Yield a warning for each damaged record of the executables, which an installation writes again."""
    for damage in filter(None, map(damage_of, record_paths(bin_dir, names))):
        source = "of this command, or of a record that is whole"
        yield f"warning: {damage.msg}: it is written again, with the directories and --wait {source}"


def damages(state_dir: Path) -> list[PeerError]:
    """Return the damage of each record of the installations for a state directory. Raise the errors of `read_installed`."""
    found = [damage_of(record) for record in OtherInstallations(read_installed(state_dir)).records]
    return [each for each in found if each is not None]


def recorded_wait(bin_dir: Path, names: Names) -> int:
    """Return for how many seconds the executables wait for an agent. Raise PeerError if their record cannot be read."""
    text = recorded_settings(bin_dir, names).get("wait", "")
    return min(int(text), MAX_WAIT_SECONDS) if text.isascii() and text.isdecimal() else 0


def read_digests(record: Path) -> dict[Path, str]:
    """Return the files that a record lists, with their digests. Raise PeerError if it cannot be read."""
    files = (value.partition(" ") for key, value in read_lines(record) if key == "file")
    return {_normalized(path): digest for digest, _, path in files}


def read_lines(record: Path) -> Iterator[tuple[str, str]]:
    """Yield keys and values; none if the record does not exist. Raise PeerError if it cannot be read."""
    try:
        *lines, _ = os.fsdecode(record.read_bytes()).split("\n")  # the last one has an end, unless it was cut
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise PeerError(
            f"record {str(record)!r} cannot be read: {error.strerror}", details="run this as root, or choose another --bin-dir"
        ) from error
    for line in lines:
        key, sign, value = line.partition("=")
        if sign:
            yield key, value


def is_same(path: str | Path, other: str | Path) -> bool:
    """Return whether two paths name the same file or directory, also through symbolic links."""
    return os.path.realpath(path) == os.path.realpath(other)


def _normalized(path: str) -> Path:
    """Return the path of a file in its resolved directory, because several paths may name a directory."""
    return Path(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def digest_of(data: bytes) -> str:
    """Return the digest of a file's content as records have it."""
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _updated(key: str, value: str, digests: Mapping[Path, str]) -> tuple[str, str]:
    digest, _, path = value.partition(" ")
    return (key, f"{digests.get(_normalized(path), digest)} {path}") if key == "file" else (key, value)
