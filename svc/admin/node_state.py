"""The state of this node: pending releases in the agent's journal, and the lock that a restore of its store needs."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from svc.attach.journal import Journal
from svc.attach.journal_reader import read_every_row
from svc.attach.record import AttachmentId, Record
from svc.cni.locks import AGENT, StateLock
from svc.model.errors import CallerError, Code, PeerError, reason_of
from svc.private_directory import UnsafeDirectory
from svc.timestamps import rfc3339

_JOURNAL: Final = "journal.db"


@contextmanager
def open_journal(state_dir: Path) -> Iterator[Journal]:
    """Open the journal to change it; a damaged one is replaced. Raise CallerError if it does not exist."""
    with closing(Journal(journal_path(state_dir))) as journal:
        yield journal


def journal_path(state_dir: Path) -> Path:
    """Return the path of the journal. Raise CallerError if it does not exist."""
    path = state_dir / _JOURNAL
    if state_dir.exists() and not state_dir.is_dir():
        msg = f"state directory {str(state_dir)!r} is not a directory"
        raise CallerError(msg, details="name the directory of the agent with --state-dir")
    if not path.exists():
        raise CallerError(
            f"journal {str(path)!r} does not exist",
            details="start the agent, which makes it, or name the directory of the agent with --state-dir",
        )
    return path


def read_attachments(state_dir: Path, profile: str) -> list[Record]:
    """Return the attachments of a names profile, also those with a pending release; none without a journal.

    Raise StoreError if the journal or one of its rows cannot be read.
    """
    if not (state_dir / _JOURNAL).exists():
        return []
    return [record for record in read_every_row(state_dir / _JOURNAL) if record.profile == profile]


def find_release(journal: Journal, wanted: AttachmentId) -> Record:
    """Return a pending release. Raise CallerError if it does not exist."""
    for record in journal.pending_releases():
        if record.id == wanted:
            return record
    name = f"{wanted.network} {wanted.container_id} {wanted.ifname}"
    raise CallerError(f"no release of {name} is pending", details="see `svcctl pending get`")


def append_note(path: Path, document: dict[str, Any]) -> None:
    """Append a line, with the time, that survives a power cut. Raise PeerError if it cannot be written."""
    line = json.dumps({"time": rfc3339(datetime.now(timezone.utc).timestamp()), **document}) + "\n"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as notes:
            notes.write(line)
            notes.flush()
            os.fsync(notes.fileno())
    except OSError as error:
        raise PeerError(
            f"the reason cannot be noted in {str(path)!r}: {error.strerror}", details="free space there", code=Code.IO_FAILURE
        ) from error


def lock_state(state_dir: Path, holder: str) -> StateLock:
    """Return the lock of the state, held. Raise PeerError if an agent or a call has it."""
    try:
        lock = StateLock(state_dir, holder)
        try:
            lock.take(0)
        except PeerError:
            other = lock.holder()
            lock.close()
            msg = f"{'an agent runs' if other.purpose == AGENT else 'the state is in use'}: {other}"
            raise PeerError(msg, details="stop it, and repeat", code=Code.TRY_AGAIN) from None
    except OSError as error:
        fix = error.fix if isinstance(error, UnsafeDirectory) else "run this as root"
        raise PeerError(f"the state cannot be locked: {reason_of(error)}", details=fix, code=Code.IO_FAILURE) from error
    return lock
