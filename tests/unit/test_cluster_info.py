"""svcctl: the cluster's information, which says whose a datastore is and whether it may be changed."""

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from svc.admin import cluster_info
from svc.datastore.api import Delete, Update
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError, Code
from svc.model.kv_codec import Codec
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

NOW = datetime(2026, 11, 20, 18, 2, 53, tzinfo=timezone.utc)
CALICO = load_profile("calico")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A datastore that is not initialised under these names."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as own:
        assert cluster_info.get(own).spec[cluster_info.READY] is True
    with closing(EmbeddedStore(tmp_path / "store.db", CALICO)) as opened:
        yield opened


def test_initialising_makes_an_identity(store: EmbeddedStore) -> None:
    """32 hexadecimal digits; ready at once. What is there stays on the next time."""
    assert cluster_info.initialise(store, CALICO, ["k8s", "bgp"], "v3.29.3", NOW) == "created"
    spec = cluster_info.get(store).spec
    assert spec == {
        "clusterGUID": spec["clusterGUID"], "clusterType": "k8s,bgp", "calicoVersion": "v3.29.3", "datastoreReady": True,
    }  # fmt: skip
    assert list(spec) == ["clusterGUID", "clusterType", "calicoVersion", "datastoreReady"]
    assert int(spec["clusterGUID"], 16).bit_length() <= 128
    assert len(spec["clusterGUID"]) == 32
    assert cluster_info.initialise(store, CALICO, ["bgp"], "", NOW) == "unchanged"
    assert cluster_info.get(store).spec == spec


def test_types_are_added_to_those_known(store: EmbeddedStore) -> None:
    """Each once, and nothing else changes."""
    cluster_info.initialise(store, CALICO, ["k8s"], "", NOW)
    before = cluster_info.get(store)
    assert cluster_info.initialise(store, CALICO, ["kdd", "k8s"], "", NOW) == "updated"
    assert cluster_info.get(store).spec == before.spec | {"clusterType": "k8s,kdd"}
    assert cluster_info.get(store).metadata == before.metadata


def test_empty_things_are_left_out(store: EmbeddedStore) -> None:
    """As the incumbent writes a new record, byte for byte but for the identities."""
    cluster_info.initialise(store, CALICO, [], "", NOW)
    info = cluster_info.get(store)
    expected = (
        '{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default","uid":"<uid>",'
        '"creationTimestamp":"2026-11-20T18:02:53Z"},"spec":{"clusterGUID":"<guid>","datastoreReady":true}}'
    )
    written = Codec(CALICO).encode(info).decode()
    assert written == expected.replace("<guid>", info.spec["clusterGUID"]).replace("<uid>", info.metadata["uid"])


def test_locked_datastore_stays_locked_when_initialised(store: EmbeddedStore) -> None:
    """Only unlocking ends a migration."""
    cluster_info.initialise(store, CALICO, [], "", NOW)
    assert cluster_info.set_ready(store, ready=False) == "updated"
    assert cluster_info.set_ready(store, ready=False) == "unchanged"
    cluster_info.initialise(store, CALICO, ["k8s"], "", NOW)
    assert cluster_info.get(store).spec["datastoreReady"] is False
    assert cluster_info.set_ready(store, ready=True) == "updated"
    assert cluster_info.get(store).spec["datastoreReady"] is True


def test_what_others_have_written_survives(store: EmbeddedStore) -> None:
    """Fields that we do not know."""
    cluster_info.initialise(store, CALICO, [], "", NOW)
    entry = store.get(cluster_info.KEY)
    info = cluster_info.get(store)
    info.spec["variant"] = "Plain"
    store.write([Update(cluster_info.KEY, info, entry.revision)])
    cluster_info.set_ready(store, ready=False)
    cluster_info.initialise(store, CALICO, ["k8s"], "", NOW)
    assert cluster_info.get(store).spec["variant"] == "Plain"


def test_missing_record_is_told_with_the_remedy(store: EmbeddedStore) -> None:
    """Locking nothing would lock nothing out."""
    for act in (lambda: cluster_info.get(store), lambda: cluster_info.set_ready(store, ready=True)):
        with pytest.raises(CallerError, match="not initialised") as caught:
            act()
        assert caught.value.code == Code.DATASTORE_LOCKED
        assert "svcctl clusterinfo init" in caught.value.details


def test_record_that_goes_meanwhile_is_made_again(tmp_path: Path) -> None:
    """By the initialising command."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as own:
        own.write([Delete(cluster_info.KEY)])
        assert cluster_info.initialise(own, DEFAULT, [], "", NOW) == "created"
