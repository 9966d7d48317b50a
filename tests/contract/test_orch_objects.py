"""Objects in the API server: missing definitions, malformed objects, unknown fields, and unsupported objects."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from contract.samples import handle, pool
from harness.ipam import document, free, put_pool, take
from harness.kube import Kube
from harness.orch import install, open_store, put_core_node, put_pod, wire
from svc._core.cidr import Cidr
from svc.ctl.main import main
from svc.datastore.api import Conflict, Create, Delete, NotFound, StoreError, UndecodableEntry, Update
from svc.datastore.orch.client import ApiError
from svc.datastore.orch.store import OrchStore
from svc.deploy.crds import definitions
from svc.ipam.service import IpamService
from svc.model.endpoint import Workload, endpoint_key
from svc.model.keys import BlockKey, BlockQuery, HandleKey, ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

POOLS = ResourceQuery("IPPool")


@pytest.fixture
def without_definitions(clean_kube: Kube) -> Iterator[Kube]:
    for definition in definitions(DEFAULT, DEFAULT.crd_api_version):
        clean_kube.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}")
    clean_kube.await_gone(f"/apis/{DEFAULT.crd_api_version}/ippools")
    yield clean_kube
    install(clean_kube)


def test_missing_definitions_are_reported_and_can_be_applied(without_definitions: Kube, tmp_path: Path) -> None:
    """A missing kind is not reported as a missing key. After `svcctl crd apply` the same session works."""
    kubeconfig = str(without_definitions.kubeconfig(tmp_path / "kubeconfig"))
    settings = {"kubeconfig": kubeconfig, "api_group": DEFAULT.crd_api_version}
    with closing(OrchStore(settings, DEFAULT)) as store:
        for ask in (lambda: store.list(POOLS), lambda: store.get(HandleKey("h"))):
            with pytest.raises(ApiError, match="404") as refusal:
                ask()
            assert "svcctl crd apply" in refusal.value.details
        result = CliRunner().invoke(main, ["crd", "apply", "--kubeconfig", kubeconfig])
        assert result.exit_code == 0, result.output
        assert "ippools.crd.svc.internal applied" in result.output
        assert store.list(POOLS) == []


def test_definitions_and_role_are_printed() -> None:
    """`svcctl crd print` shows what `crd apply` creates, and `crd role` shows what an administrator grants."""
    printed = CliRunner().invoke(main, ["crd", "print", "--group", "plain"]).output
    assert "name: ipamconfigurations.svc.internal" in printed
    assert "x-kubernetes-validations" not in printed
    assert "kind: ClusterRole" in CliRunner().invoke(main, ["crd", "role"]).output


def test_damaged_object_fails_a_get_and_is_omitted_from_a_list(
    clean_kube: Kube, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the omitted object."""
    spec = {"cidr": "10.0.0.0/30", "allocations": [7], "unallocated": [], "attributes": [], "strictAffinity": False}
    body = {"apiVersion": DEFAULT.crd_api_version, "kind": "IPAMBlock", "metadata": {"name": "10-0-0-0-30"}, "spec": spec}
    clean_kube.call("POST", f"/apis/{DEFAULT.crd_api_version}/ipamblocks", body)
    with closing(open_store(clean_kube, tmp_path)) as store:
        with pytest.raises(UndecodableEntry, match="10-0-0-0-30"):
            store.get(BlockKey(Cidr("10.0.0.0/30")))
        assert store.list(BlockQuery()) == []
        assert "10-0-0-0-30" in caplog.text


def test_invalid_revision_is_a_conflict(clean_kube: Kube, tmp_path: Path) -> None:
    """The server would accept zero as any revision, or reject it as invalid. The object stays as it is."""
    with closing(open_store(clean_kube, tmp_path)) as store:
        (entry,) = store.write([Create(HandleKey("h"), handle(1))])
        for attempt in (Update(HandleKey("h"), handle(2), "0"), Delete(HandleKey("h"), "0")):
            with pytest.raises(Conflict):
                store.write([attempt])
        assert store.get(HandleKey("h")) == entry


def test_schema_refuses_a_malformed_pool(clean_kube: Kube, tmp_path: Path) -> None:
    """The error names the field with the wrong type."""
    with closing(open_store(clean_kube, tmp_path)) as store:
        with pytest.raises(ApiError, match=r"spec\.natOutgoing") as refusal:
            store.write(
                [Create(ResourceKey("IPPool", "p"), Resource("IPPool", {"name": "p"}, {"cidr": "x", "natOutgoing": "yes"}))]
            )
        assert refusal.value.status == 422


def test_unknown_fields_of_a_pool_are_kept(clean_kube: Kube, tmp_path: Path) -> None:
    """A newer version of another program may have written them."""
    with closing(open_store(clean_kube, tmp_path)) as store:
        wanted = pool("p")
        wanted.spec["newer"] = {"deep": [1]}
        wanted.metadata["labels"] = {"mine": "yes"}
        (created,) = store.write([Create(ResourceKey("IPPool", "p"), wanted)])
        assert created is not None
        assert isinstance(created.value, Resource)
        created.value.spec["disabled"] = True
        store.write([Update(created.key, created.value, created.revision)])
        found = store.get(created.key).value
        assert isinstance(found, Resource)
        assert found.spec == {"cidr": "10.0.0.0/24", "newer": {"deep": [1]}, "disabled": True}
        assert found.labels == {"mine": "yes"}


def test_nodes_and_profiles_are_not_written(clean_kube: Kube, tmp_path: Path) -> None:
    """They belong to Kubernetes. Endpoints of bare containers cannot be written either."""
    put_core_node(clean_kube, "node1")
    node = Resource("Node", {"name": "n"})
    bare = endpoint_key(DEFAULT, "node1", Workload("c1"), "eth0")
    refused: list[tuple[Callable[[OrchStore], Any], str]] = [
        (
            lambda store: store.write([Create(ResourceKey("Node", "n"), node)]),
            "belongs to Kubernetes",
        ),
        (lambda store: store.write([Delete(ResourceKey("Node", "node1"))]), "belongs to Kubernetes"),
        (lambda store: store.get(ResourceKey("Profile", "p")), "is not kept"),
        (lambda store: store.write([Create(bare, Resource("WorkloadEndpoint", {}))]), "belongs to no pod"),
    ]
    with closing(open_store(clean_kube, tmp_path)) as store:
        for attempt, expected in refused:
            with pytest.raises(StoreError, match=expected):
                attempt(store)


def test_refused_deletion_of_a_node_releases_no_block(clean_kube: Kube, tmp_path: Path) -> None:
    """`svcctl node delete` fails before it releases a block, and recommends the command that deletes the node."""
    put_core_node(clean_kube, "node1")
    with closing(open_store(clean_kube, tmp_path)) as store:
        put_pool(store, "pool4", "10.65.0.0/28", blockSize=30)
        take(IpamService(store, "node1"), "net.c1")
        free(IpamService(store, "node1"), "net.c1")
        before = document(store)
        netconf = tmp_path / "netconf.json"
        datastore = {"datastore_type": "orch", "orch": {"kubeconfig": str(tmp_path / "kubeconfig")}}
        netconf.write_text(json.dumps({"name": "n", "type": "svc", "ipam": {"type": "svc-ipam"}, **datastore}))
        result = CliRunner().invoke(main, ["--netconf", str(netconf), "node", "delete", "node1"])
        assert (result.exit_code, "kubectl delete node node1" in result.output) == (1, True), result.output
        assert document(store) == before


def test_endpoint_needs_its_pod(clean_kube: Kube, tmp_path: Path) -> None:
    """Without the pod no endpoint can be written. If the pod has changed since it was read, a write is a conflict."""
    with closing(open_store(clean_kube, tmp_path)) as store:
        with pytest.raises(NotFound):
            wire(store)
        put_core_node(clean_kube, "node1")
        put_pod(clean_kube, "web")
        entry = wire(store)
        assert store.list(ResourceQuery("WorkloadEndpoint", "default")) == [entry]
        relabel = {"metadata": {"labels": {"a": "b"}}}
        clean_kube.call("PATCH", "/api/v1/namespaces/default/pods/web", relabel, "application/merge-patch+json")
        with pytest.raises(Conflict):
            store.write([Delete(entry.key, entry.revision)])
        with closing(store.watch(ResourceQuery("WorkloadEndpoint", "default"))) as watch:
            assert next(watch).key == entry.key
            store.write([Delete(entry.key)])
            assert next(watch).entry is None
