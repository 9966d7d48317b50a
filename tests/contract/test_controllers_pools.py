"""The finalizer and the condition of pools, where they are objects of the plain API group."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import set_ready
from harness.driven_part import Driven, driven
from harness.ipam import put_pool
from harness.kube import Kube
from harness.orch import AdministratorStore, install, put_core_node, wipe
from svc._core.cidr import Address
from svc.attach.datastore_ready import DatastoreLocked
from svc.controllers.assembly import Part
from svc.controllers.controller import Shared
from svc.controllers.node.pools import Pools
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.errors import PeerError, SvcError
from svc.model.keys import BlockQuery
from svc.names import DEFAULT

pytestmark = pytest.mark.server

GROUP = f"/apis/{DEFAULT.api_version}"
POOLS = f"{GROUP}/ippools"
MERGE = "application/merge-patch+json"


@pytest.fixture
def store(kube: Kube, tmp_path: Path) -> Iterator[Backend]:
    """Return a session with pools in the plain group, as an administrator has it."""
    install(kube, DEFAULT, DEFAULT.api_version)
    with closing(AdministratorStore(kube, tmp_path, DEFAULT, DEFAULT.api_version)) as made:
        set_ready(made)
        put_core_node(kube, "node1")
        yield made
        for pool in kube.call("GET", POOLS)["items"]:
            kube.call("PATCH", f"{POOLS}/{pool['metadata']['name']}", {"metadata": {"finalizers": None}}, MERGE)
        wipe(kube, DEFAULT, DEFAULT.api_version)
        kube.forget("minions/")


def make(shared: Shared, _clock: object) -> Part:
    return Pools(shared)


@pytest.fixture
def part(client: Client, store: Backend) -> Iterator[Driven]:
    with driven(client, store, make) as made:
        yield made


def allocatable(kube: Kube, name: str) -> tuple[str, str]:
    """Return status and reason of the condition; empty without one."""
    conditions = (find(kube, name).get("status") or {}).get("conditions") or [{}]
    return conditions[0].get("status", ""), conditions[0].get("reason", "")


def find(kube: Kube, name: str) -> Any:
    return kube.call("GET", f"{POOLS}/{name}")


def is_kept(kube: Kube, name: str) -> bool:
    return DEFAULT.finalizer in (find(kube, name)["metadata"].get("finalizers") or ())


def exists(kube: Kube, name: str) -> bool:
    return name in {pool["metadata"]["name"] for pool in kube.call("GET", POOLS)["items"]}


def delete(kube: Kube, name: str) -> None:
    kube.call("DELETE", f"{POOLS}/{name}")


def take(store: Backend, handle: str) -> Address:
    return IpamService(store, "node1").assign(Assign(handle, {"node": "node1"})).addresses[0]


def test_pool_is_allocatable_and_kept(kube: Kube, store: Backend, part: Driven) -> None:
    put_pool(store, "p", "10.66.0.0/24")
    part.round()
    assert allocatable(kube, "p") == ("True", "OK")
    assert is_kept(kube, "p")
    before = find(kube, "p")["metadata"]["resourceVersion"]
    part.round()
    assert find(kube, "p")["metadata"]["resourceVersion"] == before


def test_disabled_pool_is_not_allocatable(kube: Kube, store: Backend, part: Driven) -> None:
    put_pool(store, "p", "10.66.0.0/24", disabled=True)
    part.round()
    assert allocatable(kube, "p") == ("False", "PoolDisabled")
    kube.call("PATCH", f"{POOLS}/p", {"spec": {"disabled": False}}, MERGE)
    part.round()
    assert allocatable(kube, "p") == ("True", "OK")


def test_pool_that_overlaps_an_allocatable_one_gives_no_address(kube: Kube, store: Backend, part: Driven) -> None:
    """Its name comes first, and it would win without the history. When the other one goes, it takes its place."""
    put_pool(store, "p", "10.66.0.0/24")
    part.round()
    put_pool(store, "a", "10.66.0.0/16")
    part.round()
    assert (allocatable(kube, "p"), allocatable(kube, "a")) == (("True", "OK"), ("False", "CIDROverlap"))
    assert (is_kept(kube, "p"), is_kept(kube, "a")) == (True, False)
    delete(kube, "p")
    part.round()
    part.round()
    assert not exists(kube, "p")
    assert allocatable(kube, "a") == ("True", "OK")


def test_deleted_pool_stays_until_its_last_address_is_free(kube: Kube, store: Backend, part: Driven) -> None:
    put_pool(store, "p", "10.66.0.0/24")
    part.round()
    take(store, "net.a")
    delete(kube, "p")
    with_refusal(part)
    assert allocatable(kube, "p") == ("False", "Terminating")
    assert exists(kube, "p")
    with pytest.raises(SvcError):
        take(store, "net.b")
    IpamService(store, "node1").release(Release("net.a"))
    with_refusal(part)
    assert not exists(kube, "p")
    assert list(store.list(BlockQuery())) == []


def with_refusal(part: Driven) -> None:
    """Make a round. A pool in use is reported as one that is tried again."""
    with suppress(PeerError):
        part.round()


def test_deleted_pool_without_blocks_goes_at_once(kube: Kube, store: Backend, part: Driven) -> None:
    put_pool(store, "p", "10.66.0.0/24")
    part.round()
    delete(kube, "p")
    part.round()
    assert not exists(kube, "p")


def test_finalizers_of_others_stay(kube: Kube, store: Backend, part: Driven) -> None:
    put_pool(store, "p", "10.66.0.0/24")
    kube.call("PATCH", f"{POOLS}/p", {"metadata": {"finalizers": ["example.org/keep"]}}, MERGE)
    part.round()
    assert find(kube, "p")["metadata"]["finalizers"] == ["example.org/keep", DEFAULT.finalizer]
    delete(kube, "p")
    part.round()
    assert find(kube, "p")["metadata"]["finalizers"] == ["example.org/keep"]


def test_locked_datastore_is_not_changed(kube: Kube, store: Backend, part: Driven) -> None:
    put_pool(store, "p", "10.66.0.0/24")
    set_ready(store, ready=False)
    with pytest.raises(DatastoreLocked):
        part.round()
    assert not is_kept(kube, "p")
