"""svcctl store and pending, without an agent."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.journal_rows import record
from harness.svcctl import Cli
from svc.attach.journal import Journal
from svc.attach.record import DELETING
from svc.cni.locks import AGENT, StateLock

POOL = '{"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": "%s"}, "spec": {"cidr": "10.65.0.0/24"}}'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return svcctl on a store with one pool."""
    cli = Cli(tmp_path)
    cli.changes("pool", "apply", "-f", "-", stdin=POOL % "first")
    return cli


@pytest.fixture
def copy(cli: Cli, tmp_path: Path) -> Path:
    """Return a backup of the store."""
    path = tmp_path / "copy"
    assert cli.changes("store", "backup", str(path)) == f"{path} written\n"
    return path


def test_restore_replaces_the_store_by_the_backup(cli: Cli, copy: Path) -> None:
    """Restore refuses to run while an agent runs. It keeps the replaced store. Backup does not replace a file."""
    assert "exists already" in cli.fails("store", "backup", str(copy))
    assert "backup '-' is not the name of a file" in cli.fails("store", "backup", "-")
    before = cli.prints("pool", "get")
    cli.changes("pool", "delete", "first")
    with closing(StateLock(cli.folder / "state", AGENT)) as lock:
        lock.take(0)
        assert cli.fails("store", "restore", str(copy)).startswith("Error: an agent runs: process ")
    restored, kept = cli.changes("store", "restore", str(copy)).splitlines()
    assert restored == f"restored from {copy}"
    assert cli.prints("pool", "get") == before
    (cli.folder / "old").mkdir()
    Path(kept.removeprefix("replaced store kept as ")).rename(cli.folder / "old" / "store.db")
    assert cli.prints("--state-dir", str(cli.folder / "old"), "pool", "get").splitlines()[1:] == []


@pytest.mark.parametrize("damage", ["text", "truncated", "garbage", "another program", "missing"])
def test_restore_of_a_damaged_backup_changes_nothing(cli: Cli, copy: Path, damage: str) -> None:
    """svcctl checks the backup before its first change."""
    before = cli.prints("pool", "get")
    data = bytearray(copy.read_bytes())
    match damage:
        case "text":
            copy.write_text("not a database" * 1000)
        case "truncated":
            copy.write_bytes(data[: len(data) // 2])
        case "garbage":
            data[4096:8192] = b"x" * 4096
            copy.write_bytes(data)
        case "another program":
            copy.unlink()
            with closing(sqlite3.connect(copy)) as other:
                other.execute("CREATE TABLE t (a)")
        case "missing":
            copy.unlink()
    refusal = cli.fails("store", "restore", str(copy))
    assert f"backup {str(copy)!r} cannot be restored" in refusal
    assert ("No such file or directory" in refusal) is (damage == "missing")
    assert cli.prints("pool", "get") == before
    assert list((cli.folder / "state").glob("*store.db.*")) == []


def test_restore_replaces_a_damaged_store(cli: Cli, copy: Path) -> None:
    """svcctl keeps the damaged file."""
    before = cli.prints("pool", "get")
    (cli.folder / "state" / "store.db").write_text("damaged" * 1000)
    cli.changes("store", "restore", str(copy))
    assert cli.prints("pool", "get") == before
    assert [path.read_text()[:7] for path in (cli.folder / "state").glob("store.db.*")] == ["damaged"]


def test_restore_needs_the_store_for_itself(cli: Cli, copy: Path) -> None:
    """Another process has the store open, although no agent runs."""
    with closing(sqlite3.connect(cli.folder / "state" / "store.db")) as other:
        other.execute("SELECT * FROM sqlite_master").fetchall()
        assert "is open in another process" in cli.fails("store", "restore", str(copy))
    assert "does not exist" in cli.fails("--state-dir", str(cli.folder / "wrong"), "store", "restore", str(copy))


def test_only_an_embedded_store_can_be_copied(cli: Cli, tmp_path: Path) -> None:
    """The servers of other datastores have their own tools for backups."""
    file = tmp_path / "net.json"
    file.write_text(
        '{"cniVersion": "1.0.0", "name": "n", "type": "svc", "ipam": {"type": "svc-ipam"}, "datastore_type": "etcdv3"}'
    )
    for verb in ("backup", "restore"):
        refusal = cli.fails("--netconf", str(file), "store", verb, str(tmp_path / "copy"))
        assert "only an embedded store can be copied" in refusal


def test_pending_release_can_be_shown_and_dropped(cli: Cli) -> None:
    """svcctl records the reason in a file."""
    state_dir = cli.folder / "state"
    assert "journal.db' does not exist" in cli.fails("pending", "get")
    pending = record(state=DELETING)
    with closing(Journal(state_dir / "journal.db")) as journal:
        journal.begin(pending)
        key = (pending.id.network, pending.id.container_id, pending.id.ifname)
        (shown,) = json.loads(cli.prints("pending", "get", "-o", "json"))
        assert (shown["network"], shown["container"], shown["ifname"]) == key
        assert cli.prints("pending", "get").splitlines()[1].split()[:3] == list(key)
        assert "eth9 is pending: see" in cli.fails("pending", "drop", *key[:2], "eth9", "--reason", "x")
        assert "is empty: say why" in cli.fails("pending", "drop", *key, "--reason", " ", code=2)
        assert cli.changes("pending", "drop", *key, "--reason", "gone for good").startswith(" ".join(key))
        assert journal.pending_releases() == []
    noted = state_dir / "dropped-releases.jsonl"
    assert noted.stat().st_mode & 0o777 == 0o600
    assert json.loads(noted.read_text())["reason"] == "gone for good"


def test_release_is_not_dropped_if_its_reason_cannot_be_noted(cli: Cli) -> None:
    (cli.folder / "state" / "dropped-releases.jsonl").mkdir()
    pending = record(state=DELETING)
    with closing(Journal(cli.folder / "state" / "journal.db")) as journal:
        journal.begin(pending)
        key = (pending.id.network, pending.id.container_id, pending.id.ifname)
        assert "the reason cannot be noted" in cli.fails("pending", "drop", *key, "--reason", "gone")
        assert journal.pending_releases() == [pending]
