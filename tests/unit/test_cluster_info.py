"""svcctl: the cluster's information, which says whose a datastore is and whether it may be changed."""

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from svc.admin import resources
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
        assert resources.get_cluster_information(own).spec[resources.READY] is True
    with closing(EmbeddedStore(tmp_path / "store.db", CALICO)) as opened:
        yield opened


def test_initialising_makes_an_identity(store: EmbeddedStore) -> None:
    """32 hexadecimal digits; ready at once. What is there stays on the next time."""
    assert resources.initialise(store, CALICO, ["k8s", "bgp"], "v3.29.3", NOW) == "created"
    spec = resources.get_cluster_information(store).spec
    assert spec == {
        "clusterGUID": spec["clusterGUID"], "clusterType": "k8s,bgp", "calicoVersion": "v3.29.3", "datastoreReady": True,
    }  # fmt: skip
    assert list(spec) == ["clusterGUID", "clusterType", "calicoVersion", "datastoreReady"]
    assert int(spec["clusterGUID"], 16).bit_length() <= 128
    assert len(spec["clusterGUID"]) == 32
    assert resources.initialise(store, CALICO, ["bgp"], "", NOW) == "unchanged"
    assert resources.get_cluster_information(store).spec == spec


def test_types_are_added_to_those_known(store: EmbeddedStore) -> None:
    """Each once, and nothing else changes."""
    resources.initialise(store, CALICO, ["k8s"], "", NOW)
    before = resources.get_cluster_information(store)
    assert resources.initialise(store, CALICO, ["kdd", "k8s"], "", NOW) == "updated"
    assert resources.get_cluster_information(store).spec == before.spec | {"clusterType": "k8s,kdd"}
    assert resources.get_cluster_information(store).metadata == before.metadata


def test_empty_things_are_left_out(store: EmbeddedStore) -> None:
    """As the incumbent writes a new record, byte for byte but for the identities."""
    resources.initialise(store, CALICO, [], "", NOW)
    info = resources.get_cluster_information(store)
    expected = (
        '{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default","uid":"<uid>",'
        '"creationTimestamp":"2026-11-20T18:02:53Z"},"spec":{"clusterGUID":"<guid>","datastoreReady":true}}'
    )
    written = Codec(CALICO).encode(info).decode()
    assert written == expected.replace("<guid>", info.spec["clusterGUID"]).replace("<uid>", info.metadata["uid"])


def test_locked_datastore_stays_locked_when_initialised(store: EmbeddedStore) -> None:
    """Only unlocking ends a migration."""
    resources.initialise(store, CALICO, [], "", NOW)
    assert resources.set_ready(store, ready=False) == "updated"
    assert resources.set_ready(store, ready=False) == "unchanged"
    resources.initialise(store, CALICO, ["k8s"], "", NOW)
    assert resources.get_cluster_information(store).spec["datastoreReady"] is False
    assert resources.set_ready(store, ready=True) == "updated"
    assert resources.get_cluster_information(store).spec["datastoreReady"] is True


def test_what_others_have_written_survives(store: EmbeddedStore) -> None:
    """Fields that we do not know."""
    resources.initialise(store, CALICO, [], "", NOW)
    entry = store.get(resources.CLUSTER)
    info = resources.get_cluster_information(store)
    info.spec["variant"] = "Plain"
    store.write([Update(resources.CLUSTER, info, entry.revision)])
    resources.set_ready(store, ready=False)
    resources.initialise(store, CALICO, ["k8s"], "", NOW)
    assert resources.get_cluster_information(store).spec["variant"] == "Plain"


def test_missing_record_is_told_with_the_remedy(store: EmbeddedStore) -> None:
    """Locking nothing would lock nothing out."""
    for act in (lambda: resources.get_cluster_information(store), lambda: resources.set_ready(store, ready=True)):
        with pytest.raises(CallerError, match="not initialised") as caught:
            act()
        assert caught.value.code == Code.DATASTORE_LOCKED
        assert "svcctl clusterinfo init" in caught.value.details


def test_record_that_goes_meanwhile_is_made_again(tmp_path: Path) -> None:
    """By the initialising command."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as own:
        own.write([Delete(resources.CLUSTER)])
        assert resources.initialise(own, DEFAULT, [], "", NOW) == "created"
