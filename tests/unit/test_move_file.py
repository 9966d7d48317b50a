"""The file of an export: what is written is read back, and a damaged file is refused."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from svc.model.errors import CallerError
from svc.move import file
from svc.move.snapshot import Snapshot
from svc.names import DEFAULT

DOCUMENTS = {
    "/svc/ipam/v2/config": b'{"strict_affinity": true,\n "later": {"deep": [1, null]}}',
    "/svc/ipam/v2/handle/net.c1": b'{"block":{"10.0.0.0/26":1},"deleted":false}',
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "export.jsonl"
    file.write(path, file.header_of(DEFAULT, "guid", "etcdv3", "7"), Snapshot("7", DOCUMENTS))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CallerError) as caught:
        file.read(path, DEFAULT)
    return str(caught.value)


def test_what_is_written_is_read_back(written: Path) -> None:
    found = file.read(written, DEFAULT)
    assert (found.header.cluster, found.header.source, found.header.revision) == ("guid", "etcdv3", "7")
    assert {path: json.loads(data) for path, data in found.snapshot.documents.items()} == {
        path: json.loads(data) for path, data in DOCUMENTS.items()
    }
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


@pytest.mark.parametrize("data", [b"", b"text", b"[]", b'"text"', b'{"a": 1} {', b"\xff\n\x00", b'{"a": "\xff"}'])
def test_what_is_not_an_object_is_kept(tmp_path: Path, data: bytes) -> None:
    """Other programs may have stored it. The rest of the datastore can be read back."""
    path, documents = tmp_path / "export.jsonl", {**DOCUMENTS, "/svc/ipam/v2/host/n1": data}
    file.write(path, file.header_of(DEFAULT, "guid", "etcdv3", "7"), Snapshot("7", documents))
    found = file.read(path, DEFAULT).snapshot.documents
    assert found.keys() == documents.keys()
    assert found["/svc/ipam/v2/host/n1"] == data


def test_an_empty_datastore_has_a_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    digest = file.write(path, file.header_of(DEFAULT, "", "embedded", "0"), Snapshot("0", {}))
    found = file.read(path, DEFAULT)
    assert (found.digest, found.snapshot.documents) == (digest, {})


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be written"):
        file.write(tmp_path / "missing" / "file", file.header_of(DEFAULT, "", "", ""), Snapshot("0", {}))
    assert list(tmp_path.iterdir()) == []


def signed(lines: list[bytes]) -> bytes:
    """Return a file with these lines, and the digest that they have."""
    body = b"".join(lines)
    return body + json.dumps({"documents": len(lines) - 1, "sha256": sha256(body).hexdigest()}).encode() + b"\n"


def without_end(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def with_twice(data: bytes) -> bytes:
    head, first, *_ = data.splitlines(keepends=True)
    return signed([head, first, first])


def with_value(text: bytes) -> Callable[[bytes], bytes]:
    return lambda data: signed([data.splitlines(keepends=True)[0], b'{"key":"/svc/x",%b}\n' % text])


def with_version(data: bytes) -> bytes:
    head, *others = data.splitlines(keepends=True)
    return signed([head.replace(b'"version":1', b'"version":2'), *others[:-1]])


def with_count(data: bytes) -> bytes:
    head, first, *_ = data.splitlines(keepends=True)
    body = head + first
    return body + json.dumps({"documents": 9, "sha256": sha256(body).hexdigest()}).encode() + b"\n"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data.replace(b"net.c1", b"net.c2"), "its digest is"),
        (without_end, "cut off"),
        (lambda data: data[:-1], "cut off"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: b"", "is damaged"),
        (lambda data: b"\n", "is damaged"),
        (lambda data: b"{}\n", "is not an export"),
        (lambda data: b"\xff\xfe" + data, "is damaged"),
        (lambda data: data + data, "is damaged"),
        (with_twice, "twice"),
        (with_value(b'"base64":"?"'), "is not a document with its key"),
        (with_value(b'"base64":7'), "is not a document with its key"),
        (with_value(b'"value":[]'), "is not a document with its key"),
        (with_version, "has version 2 of the format, not 1"),
        (with_count, "counts 9"),
    ],
)
def test_a_damaged_file_is_refused(written: Path, damage: Callable[[bytes], bytes], expected: str) -> None:
    written.write_bytes(damage(written.read_bytes()))
    assert expected in refusal(written)


def test_an_export_with_other_names_is_refused(written: Path) -> None:
    with pytest.raises(CallerError, match="choose their profile with --names"):
        file.read(written, replace(DEFAULT, key_root="/other"))


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "missing")


def test_a_device_is_refused() -> None:
    """It may have no end."""
    assert "FILE '/dev/zero' is a device: name an export" in refusal(Path("/dev/zero"))
