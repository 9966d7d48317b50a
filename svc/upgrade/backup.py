"""What a run saves before it writes: in a folder of this machine, and in Secrets, so that another machine can go on or undo.

The backup only grows. Each addition is a batch of lines, one for each entry. A batch is one file, which is complete or does not
exist, and as many Secrets as it needs; it counts once all of them exist.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from svc.atomic_file import replace
from svc.model.errors import reason_of
from svc.private_directory import make_private
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place, place_of
from svc.upgrade.run_names import NAME, NAMESPACE, RUN_LABEL, secret_place
from svc.upgrade.writer import Changed, Writer
from svc.values import dataclass

Json = dict[str, Any]

PART_BYTES: Final = 900_000  # of a Secret, which may have 1 MiB
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_PARTS: Final = "parts"
_DATA: Final = "entries"
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """What a step has saved."""

    step: str
    saved: Json


class Backup:
    """The entries of a run. `folder` has the folders of all runs of this machine."""

    def __init__(self, writer: Writer, folder: Path, run: str) -> None:
        self._writer = writer
        self._folder = folder / run
        self.run = run
        self._entries: list[Entry] = []
        self._former: list[Entry] = []
        self._batches = 0
        self._unpublished: dict[int, bytes] = {}

    def follow(self, run: str) -> None:
        """Read the entries of the run before this one: they say what it has applied."""
        former = Backup(self._writer, self._folder.parent, run)
        former.load()
        self._former = former.entries

    @property
    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return self._entries

    def of_former(self, step: str) -> list[Json]:
        """Return what a step has saved in the run before this one."""
        return [each.saved for each in self._former if each.step == step]

    def load(self) -> None:
        """Read the entries of the Secrets and of the folder. Raise StoreError, and Blocked if a file cannot be read."""
        batches = _complete_batches(read_secrets(self._writer, self.run))
        published = max(batches, default=0)
        for number, data in self._files():
            if number not in batches and number > published:
                self._unpublished[number] = data
            batches.setdefault(number, data)
        self._entries = [Entry(*json.loads(line)) for number in sorted(batches) for line in batches[number].splitlines()]
        self._batches = max((*batches, *self._begun()), default=0)

    def of(self, step: str) -> list[Json]:
        """Return what a step has saved, oldest first."""
        return [each.saved for each in self._entries if each.step == step]

    def publish(self) -> None:
        """Create the Secrets of batches that only the folder has: the run was killed before it could."""
        begun = set(self._begun()) if self._unpublished else set()
        for number, data in sorted(self._unpublished.items()):
            if number in begun:  # some of its Secrets exist, or another machine has begun a batch of the same number
                self._batches += 1
            self._create_secrets(self._batches if number in begun else number, data)
        self._unpublished = {}

    def add(self, entries: Sequence[Entry]) -> None:
        """Save entries durably in the folder, then in Secrets. Raise Blocked if either cannot be written."""
        if not entries:
            return
        self._batches += 1
        data = b"".join(json.dumps([each.step, each.saved]).encode() + b"\n" for each in entries)
        self._write_file(data)
        self._create_secrets(self._batches, data)
        self._entries += entries

    def _write_file(self, data: bytes) -> None:
        try:
            for folder in (self._folder.parent, self._folder):
                make_private(folder, _FOLDER_MODE)
            replace(self._folder / f"{self._batches}.jsonl", (data,), _FILE_MODE)
        except OSError as error:
            raise Blocked(
                [f"the backup cannot be written to {self._folder}: {reason_of(error)}"],
                details="nothing was changed that is not saved; make room there, or give another --state-dir",
            ) from error

    def _create_secrets(self, batch: int, data: bytes) -> None:
        parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        for number, part in enumerate(parts, 1):
            self._create_secret(_secret(self.run, batch, number, len(parts), part))

    def _create_secret(self, body: Json) -> None:
        place = place_of(body)
        for attempt in range(_ATTEMPTS):
            try:
                self._writer.create(body)
            except Changed as error:
                present = self._writer.find(place)
                if present is not None and present["data"] == body["data"]:
                    return
                if attempt == _ATTEMPTS - 1 or present is not None:
                    raise Blocked([f"the backup cannot be written: {error}"], details="run the command again") from error
            else:
                return

    def _files(self) -> Iterator[tuple[int, bytes]]:
        try:
            for path in self._folder.glob("*.jsonl"):
                if not path.name.startswith("."):
                    yield int(path.stem), path.read_bytes()
        except OSError as error:
            raise Blocked([f"the backup cannot be read: {reason_of(error)}"]) from error

    def _begun(self) -> list[int]:
        """Return the numbers of batches that have a Secret, also of incomplete ones."""
        return [number for number, *_ in read_secrets(self._writer, self.run)]

    def remove_others(self) -> None:
        """Delete the Secrets of other runs: this run replaces them."""
        for secret in list(self._writer.items(_path(self._writer), labelSelector=RUN_LABEL)):
            if secret["metadata"]["labels"][RUN_LABEL] == self.run:
                continue
            try:
                self._writer.delete(Place("v1", "Secret", NAMESPACE, secret["metadata"]["name"]), secret)
            except Changed:
                continue  # another run deletes it as well


def runs_with_secrets(writer: Writer) -> list[str]:
    """Return the runs that have a backup in the cluster, oldest first by the clock of the server.

    The names of runs have the clocks of their machines, which may differ, and jump."""
    begun: dict[str, str] = {}
    for each in writer.items(_path(writer), metadata_only=True, labelSelector=RUN_LABEL):
        run, created = each["metadata"]["labels"][RUN_LABEL], str(each["metadata"]["creationTimestamp"])
        begun[run] = min(created, begun.get(run, created))
    return sorted(begun, key=lambda run: (begun[run], run))


def read_secrets(writer: Writer, run: str) -> list[tuple[int, int, int, bytes]]:
    """Return batch, number, number of parts, and data of each Secret of a run."""
    found = []
    for secret in writer.items(_path(writer), labelSelector=f"{RUN_LABEL}={run}"):
        batch, number = map(int, secret["metadata"]["name"].rsplit("-", 2)[1:])
        parts = int(secret["metadata"]["annotations"][_PARTS])
        found.append((batch, number, parts, b64decode(secret["data"][_DATA])))
    return sorted(found)


def _complete_batches(secrets: Sequence[tuple[int, int, int, bytes]]) -> dict[int, bytes]:
    """Return the data of each batch all of whose Secrets exist, in the order of their numbers."""
    pieces: dict[int, list[bytes]] = {}
    wanted: dict[int, int] = {}
    for batch, _number, parts, data in secrets:
        pieces.setdefault(batch, []).append(data)
        wanted[batch] = parts
    return {batch: b"".join(found) for batch, found in pieces.items() if len(found) == wanted[batch]}


def _secret(run: str, batch: int, number: int, parts: int, data: bytes) -> Json:
    place = secret_place(run, batch, number)
    metadata = {
        "name": place.name,
        "namespace": NAMESPACE,
        "labels": {RUN_LABEL: run},
        "annotations": {_PARTS: str(parts)},
    }
    content = {_DATA: b64encode(data).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": f"{NAME}/backup", "data": content}


def _path(writer: Writer) -> str:
    return writer.folder(Place("v1", "Secret", NAMESPACE, NAME))
