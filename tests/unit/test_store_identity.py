"""The identity of a datastore is found again if the network configuration names it by other settings."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from svc.attach.journal import Journal
from svc.attach.store_identity import StoreIdentity, note_name, stored_identity
from svc.datastore.api import Backend, Position

PATTERN = "datastore svc *kind=etcdv3*"


class _Store:
    """A datastore whose last answer had this position."""

    requires_node = True

    def __init__(self, cluster: str, revision: int) -> None:
        self._position = Position(cluster, revision)

    def position(self) -> Position:
        return self._position


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield journal


def observe(journal: Journal, endpoint: str, guid: str, cluster: str, revision: int, *, kind: str = "etcdv3") -> StoreIdentity:
    """Return the identity in a new process after the first answer of the datastore."""
    name = note_name("svc", {"kind": kind, "etcd_endpoints": endpoint})
    identity = StoreIdentity("datastore etcdv3", journal, name, PATTERN.replace("etcdv3", kind))
    identity.observe(cast("Backend", _Store(cluster, revision)), guid)
    return identity


@pytest.mark.parametrize(("cluster", "revision", "losses"), [("c1", 100, 0), ("c1", 120, 0), ("c1", 99, 1), ("c2", 150, 1)])
def test_same_datastore_under_other_settings(journal: Journal, cluster: str, revision: int, losses: int) -> None:
    """It has lost data if its cluster id differs or its revision is lower than under the former settings."""
    observe(journal, "http://a", "guid", "c1", 100)
    identity = observe(journal, "http://b", "guid", cluster, revision)
    assert (identity.changes, identity.is_pending) == (losses, bool(losses))


def test_another_datastore_has_lost_nothing(journal: Journal) -> None:
    observe(journal, "http://a", "guid", "c1", 100)
    assert observe(journal, "http://b", "other", "c2", 5).changes == 0
    assert observe(journal, "http://c", "", "c2", 5).changes == 0
    assert observe(journal, "http://d", "guid", "", 0, kind="orch").changes == 0


def test_its_own_settings_decide_if_they_are_known(journal: Journal) -> None:
    observe(journal, "http://a", "guid", "c1", 100)
    assert observe(journal, "http://b", "guid", "c2", 5).changes == 1
    assert observe(journal, "http://b", "guid", "c2", 6).changes == 0


def test_same_cluster_is_preferred_then_the_highest_revision(journal: Journal) -> None:
    observe(journal, "http://a", "guid", "c1", 100)
    observe(journal, "http://b", "guid", "c2", 50)
    observe(journal, "http://c", "guid", "c2", 60)
    assert observe(journal, "http://d", "guid", "c2", 60).changes == 0
    assert observe(journal, "http://e", "guid", "c2", 59).changes == 1


def test_pending_claims_stay_pending(journal: Journal) -> None:
    observe(journal, "http://a", "guid", "c1", 100)
    observe(journal, "http://b", "guid", "c2", 5)
    identity = observe(journal, "http://c", "guid", "c2", 5)
    assert identity.changes == 0
    assert identity.is_pending


def test_copy_of_what_a_datastore_was_is_recognised(journal: Journal) -> None:
    """The datastore was wiped and initialised again, before its copy was observed."""
    observe(journal, "http://a", "guid", "c1", 100)
    assert observe(journal, "http://a", "fresh", "c1", 120).changes == 1
    copy = observe(journal, "http://b", "guid", "c2", 90)
    assert (copy.changes, copy.is_pending) == (1, True)
    known = stored_identity(journal, note_name("svc", {"kind": "etcdv3", "etcd_endpoints": "http://a"}))
    assert known is not None
    assert [known.is_or_was(guid) for guid in ("guid", "fresh", "other", "")] == [True, True, False, False]
