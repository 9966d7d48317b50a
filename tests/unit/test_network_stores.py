"""The datastores that networks name, and the former ones of rows."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from svc import deadline
from svc.attach.journal import Journal
from svc.attach.network_stores import Former, NetworkStores
from svc.attach.record import ADDED, AttachmentId, Record, SessionKey
from svc.datastore import sqlite
from svc.model.endpoint import Workload
from svc.names import DEFAULT

NET = "", "net"
OLD, NEW, OTHER = (SessionKey({"kind": "etcdv3", "etcd_endpoints": f"http://127.0.0.1:{port}"}, "n1") for port in (1, 2, 3))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.db")
    yield journal
    journal.close()


def attach(journal: Journal, network: str, where: SessionKey) -> None:
    key = AttachmentId(network, f"container of {network}", "eth0")
    record = Record.of(key, Workload(key.container_id, "", ""), where, DEFAULT, "boot")
    record.state = ADDED
    journal.begin(record)


def test_first_call_of_a_network_has_nothing_to_compare(journal: Journal) -> None:
    stores = NetworkStores(journal)
    stores.note(NET, OLD)
    assert (stores.present, stores.former) == ({NET: OLD}, {})


def test_next_process_compares_the_datastore_of_the_last_one(journal: Journal) -> None:
    NetworkStores(journal).note(NET, OLD)
    stores = NetworkStores(journal)
    stores.note(NET, NEW)
    assert stores.former == {NET: Former(frozenset({OLD}), frozenset())}


def test_comparison_is_repeated_until_it_is_settled(journal: Journal) -> None:
    attach(journal, "net", OLD)
    for _ in range(2):
        stores = NetworkStores(journal)
        stores.note(NET, NEW)
        assert stores.former == {NET: Former(frozenset({OLD}), frozenset())}
    stores.settle(NET)
    assert stores.former == {}
    loaded = NetworkStores(journal)
    loaded.load()
    assert loaded.present == {NET: NEW}


def test_rows_of_other_networks_are_told_apart(journal: Journal) -> None:
    attach(journal, "net", OLD)
    attach(journal, "second", OTHER)
    attach(journal, "third", NEW)
    stores = NetworkStores(journal)
    stores.note(NET, NEW)
    assert stores.former == {NET: Former(frozenset({OLD}), frozenset({OTHER}))}


@pytest.mark.parametrize("other", [SessionKey(OLD.datastore, "n2"), SessionKey(OLD.datastore, "n1", "calico")])
def test_rows_of_another_node_or_profile_do_not_count(journal: Journal, other: SessionKey) -> None:
    attach(journal, "net", other)
    stores = NetworkStores(journal)
    stores.note(NET, NEW)
    assert stores.former == {}


def test_token_is_not_stored(journal: Journal) -> None:
    NetworkStores(journal).note(NET, SessionKey({"kind": "orch", "k8s_auth_token": "secret"}, "n1"))
    assert [text for text in journal.notes("*").values() if "secret" in str(text)] == []


def test_list_counts_when_it_has_changed(journal: Journal) -> None:
    stores = NetworkStores(journal)
    stores.note_listed(NET, OLD)
    stores.note(NET, NEW)
    stores.note_listed(NET, OLD)
    assert stores.present == {NET: NEW}
    stores.note_listed(NET, OTHER)
    assert stores.present == {NET: OTHER}


def test_locked_journal_is_not_waited_for(journal: Journal, tmp_path: Path) -> None:
    """A STATUS reports the lock within its second. A later call writes what is missing."""
    stores = NetworkStores(journal)
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with deadline.limit(60):  # the writes of an ADD wait for less time than this
            before = time.monotonic()
            stores.note(NET, OLD)
            stores.note(NET, OLD)
        assert time.monotonic() - before < sqlite.BUSY_SECONDS / 2
        other.execute("ROLLBACK")
    assert journal.notes("network *") == {}
    stores.note(NET, OLD)
    assert NetworkStores(journal).last(NET) == OLD
