"""svcctl: the cluster information, which identifies a datastore and says whether it can be changed."""

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
    """Return a datastore that is not initialised under the names of Calico."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as default_store:
        assert resources.get_cluster_information(default_store).spec[resources.READY] is True
    with closing(EmbeddedStore(tmp_path / "store.db", CALICO)) as opened:
        yield opened


def test_initialising_creates_an_identity(store: EmbeddedStore) -> None:
    """The identity has 32 hexadecimal digits, and the datastore is ready. Repeating the command changes nothing."""
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


def test_types_are_added_to_the_stored_ones(store: EmbeddedStore) -> None:
    """Each type is stored once, and nothing else changes."""
    resources.initialise(store, CALICO, ["k8s"], "", NOW)
    before = resources.get_cluster_information(store)
    assert resources.initialise(store, CALICO, ["kdd", "k8s"], "", NOW) == "updated"
    assert resources.get_cluster_information(store).spec == before.spec | {"clusterType": "k8s,kdd"}
    assert resources.get_cluster_information(store).metadata == before.metadata


def test_empty_fields_are_omitted(store: EmbeddedStore) -> None:
    """The document equals that of Calico byte for byte, except for the identities."""
    resources.initialise(store, CALICO, [], "", NOW)
    info = resources.get_cluster_information(store)
    expected = (
        '{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default","uid":"<uid>",'
        '"creationTimestamp":"2026-11-20T18:02:53Z"},"spec":{"clusterGUID":"<guid>","datastoreReady":true}}'
    )
    written = Codec(CALICO).encode(info).decode()
    assert written == expected.replace("<guid>", info.spec["clusterGUID"]).replace("<uid>", info.metadata["uid"])


def test_initialising_keeps_a_datastore_locked(store: EmbeddedStore) -> None:
    """Only unlocking ends a migration."""
    resources.initialise(store, CALICO, [], "", NOW)
    assert resources.set_ready(store, ready=False) == "updated"
    assert resources.set_ready(store, ready=False) == "unchanged"
    resources.initialise(store, CALICO, ["k8s"], "", NOW)
    assert resources.get_cluster_information(store).spec["datastoreReady"] is False
    assert resources.set_ready(store, ready=True) == "updated"
    assert resources.get_cluster_information(store).spec["datastoreReady"] is True


def test_unknown_fields_are_kept(store: EmbeddedStore) -> None:
    """Another program may have written them."""
    resources.initialise(store, CALICO, [], "", NOW)
    entry = store.get(resources.CLUSTER)
    info = resources.get_cluster_information(store)
    info.spec["variant"] = "Plain"
    store.write([Update(resources.CLUSTER, info, entry.revision)])
    resources.set_ready(store, ready=False)
    resources.initialise(store, CALICO, ["k8s"], "", NOW)
    assert resources.get_cluster_information(store).spec["variant"] == "Plain"


def test_error_about_a_missing_record_has_the_fix(store: EmbeddedStore) -> None:
    """A lock without a record would have no effect."""
    for act in (lambda: resources.get_cluster_information(store), lambda: resources.set_ready(store, ready=True)):
        with pytest.raises(CallerError, match="not initialised") as caught:
            act()
        assert caught.value.code == Code.DATASTORE_LOCKED
        assert "svcctl clusterinfo init" in caught.value.details


def test_deleted_record_is_created_again(tmp_path: Path) -> None:
    """The command that initialises the datastore creates it."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as default_store:
        default_store.write([Delete(resources.CLUSTER)])
        assert resources.initialise(default_store, DEFAULT, [], "", NOW) == "created"
