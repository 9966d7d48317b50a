"""The file of an export: JSON lines. The first is the header, the last the number of documents and the digest of all before.

It has every document of a datastore as it is stored, except claims on the names of nodes, so it also serves as a backup.
What is not a JSON object, as other programs may have stored it, is there as Base64.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from svc import atomic_file
from svc.admin.output_file import require_replaceable
from svc.model.errors import CallerError, Code, reason_of
from svc.model.field_errors import display
from svc.move.snapshot import Snapshot
from svc.names import Names
from svc.values import dataclass

Json = dict[str, Any]

FORMAT: Final = "datastore-export"
VERSION: Final = 1
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Header:
    """Origin of an export: cluster ID, kind of the datastore, its revision, and the key root and API version of its names."""

    cluster: str
    source: str
    revision: str
    key_root: str
    api_version: str


@dataclass(frozen=True, slots=True)
class Export:
    """What a file contains. `digest` identifies it."""

    header: Header
    snapshot: Snapshot
    digest: str


def header_of(names: Names, cluster: str, source: str, revision: str) -> Header:
    """Return the header of an export from a datastore with these names."""
    return Header(cluster, source, revision, names.key_root, names.api_version)


def write(path: Path, header: Header, snapshot: Snapshot) -> str:
    """Write a file atomically and durably, with mode 0600; return its digest. Raise CallerError if that is not possible."""
    require_replaceable("FILE", path)
    digest = hashlib.sha256()

    def lines() -> Iterator[bytes]:
        for line in _lines(header, snapshot):
            digest.update(line)
            yield line
        yield orjson.dumps({"documents": len(snapshot.documents), "sha256": digest.hexdigest()}) + b"\n"

    try:
        atomic_file.replace(path, lines(), _MODE)
    except OSError as error:
        details = "name a file in a directory that exists and has space"
        raise CallerError(f"{path} cannot be written: {reason_of(error)}", details=details, code=Code.IO_FAILURE) from None
    return digest.hexdigest()


def _lines(header: Header, snapshot: Snapshot) -> Iterator[bytes]:
    head = {
        "format": FORMAT,
        "version": VERSION,
        "cluster": header.cluster,
        "source": header.source,
        "revision": header.revision,
        "keyRoot": header.key_root,
        "apiVersion": header.api_version,
    }
    yield orjson.dumps(head) + b"\n"
    for path, data in snapshot.documents.items():
        yield orjson.dumps({"key": path, **_value(data)}) + b"\n"


def _value(data: bytes) -> Json:
    if _is_object(data):
        return {"value": orjson.Fragment(b" ".join(data.splitlines()))}
    return {"base64": b64encode(data).decode()}


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except ValueError:
        return False


def read(path: Path, names: Names) -> Export:
    """Read a file. Raise CallerError if it is damaged, or of another version or other names."""
    try:
        if path.is_char_device() or path.is_block_device():  # it may have no end
            raise CallerError(f"FILE {str(path)!r} is a device", details="name an export")
        data = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {reason_of(error)}"
        raise CallerError(message, details="name an export", code=Code.IO_FAILURE) from None
    body, _, tail = data.removesuffix(b"\n").rpartition(b"\n")
    first, _, rest = body.partition(b"\n")
    header = _header(path, names, first or tail)
    digest = _checked_digest(path, data, tail)
    documents = _documents(path, rest)
    count = _object(path, tail).get("documents")
    if count != len(documents):
        raise _damaged(path, f"it has {len(documents)} documents, and its last line counts {display(count)}")
    return Export(header, Snapshot(header.revision, documents), digest)


def _header(path: Path, names: Names, line: bytes) -> Header:
    head = _object(path, line)
    if head.get("format") != FORMAT:
        raise CallerError(f"{path} is not an export", details="name a file that `svcctl datastore export FILE` has written")
    if head.get("version") != VERSION:
        problem = f"{path} has version {display(head.get('version'))} of the format, not {VERSION}"
        raise CallerError(problem, details="use the svcctl that has written it, or export again")
    found = Header(*(str(head.get(name) or "") for name in ("cluster", "source", "revision", "keyRoot", "apiVersion")))
    if (found.key_root, found.api_version) != (names.key_root, names.api_version):
        problem = f"{path} has the names {found.key_root!r} and {found.api_version!r}"
        raise CallerError(problem, details=f"choose their profile with --names: this one has {names.key_root!r}")
    return found


def _checked_digest(path: Path, data: bytes, tail: bytes) -> str:
    digest = hashlib.sha256(data[: data.rindex(tail)]).hexdigest()
    stated = _object(path, tail).get("sha256")
    if stated is None or not data.endswith(b"\n"):
        raise _damaged(path, "its last line is missing: it is cut off")
    if stated != digest:
        raise _damaged(path, f"its digest is {digest}, and its last line states {display(stated)}")
    return digest


def _documents(path: Path, rest: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for line in rest.splitlines():
        item = _object(path, line)
        key, data = item.get("key"), _data(item)
        if not isinstance(key, str) or data is None:
            raise _damaged(path, f"{display(item)} is not a document with its key")
        if key in found:
            raise _damaged(path, f"it has {key} twice")
        found[key] = data
    return found


def _data(item: Json) -> bytes | None:
    """Return the document in a line; None if it has none."""
    value, text = item.get("value"), item.get("base64")
    if isinstance(value, dict):
        return orjson.dumps(value)
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else None
    except ValueError:
        return None


def _object(path: Path, line: bytes) -> Json:
    try:
        found = orjson.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _damaged(path, "a line is not a JSON object")
    return found


def _damaged(path: Path, problem: str) -> CallerError:
    details = "copy it again from where it was exported, or export again"
    return CallerError(f"{path} is damaged: {problem}", details=details, code=Code.DECODING_FAILURE)
