"""Access to the API server: rights, tokens that expire or change, authorities, and both API groups."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from contract.samples import block, handle
from harness.api_proxy import ApiProxy, Fate, Order
from harness.etcd import free_ports
from harness.kube import ADMIN_TOKEN, Kube
from harness.orch import VERBS, grant_role, open_store, put_core_node, put_pod, revoke_role, wire
from svc import deadline
from svc._core.cidr import Cidr
from svc.admin import pools
from svc.attach.api_clients import ApiClientPool
from svc.datastore.api import Create, Delete, Forbidden, NotFound, StoreError, Update
from svc.datastore.orch.client import ApiError, Unreachable
from svc.datastore.orch.store import OrchStore
from svc.model.claim import Claimant, NodeClaim
from svc.model.errors import SvcError
from svc.model.ipam import CONFIRMED, PENDING, Affinity, IpamConfig
from svc.model.keys import (
    IPAM_CONFIG,
    AffinityKey,
    AffinityQuery,
    BlockKey,
    BlockQuery,
    HandleKey,
    HandleQuery,
    IpamConfigKey,
    Key,
    NodeClaimKey,
    NodeClaimQuery,
    Query,
    ResourceKey,
    ResourceQuery,
)
from svc.model.kv_codec import Value
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

POOLS = ResourceQuery("IPPool")


# rights


@pytest.fixture
def cluster_of_roles(clean_kube: Kube) -> Iterator[Kube]:
    put_core_node(clean_kube, "node1", {"rack": "a"})
    put_pod(clean_kube, "web")
    group = f"/apis/{DEFAULT.crd_api_version}"
    for kind, plural, spec in (
        ("ClusterInformation", "clusterinformations", {"datastoreReady": True}),
        ("IPAMConfig", "ipamconfigs", {"strictAffinity": True, "autoAllocateBlocks": True}),
        ("IPPool", "ippools", {"cidr": "10.0.0.0/24"}),
    ):
        body = {"apiVersion": DEFAULT.crd_api_version, "kind": kind, "metadata": {"name": "default"}, "spec": spec}
        clean_kube.call("POST", f"{group}/{plural}", body)
    yield clean_kube
    revoke_role(clean_kube)


def use_every_operation(store: OrchStore) -> None:
    """Execute each operation that the plugin needs in a cluster."""
    _claim_the_node(store)
    _write_everything(store)
    wire(store)
    assert [entry.value.spec["node"] for entry in store.list(ResourceQuery("WorkloadEndpoint", node="node1"))] == ["node1"]
    assert store.get(ResourceKey("Node", "node1")).value == store.list(ResourceQuery("Node"))[0].value
    assert store.get(IpamConfigKey()).value == IpamConfig(strict_affinity=True)
    ready = store.get(ResourceKey("ClusterInformation", "default")).value
    assert isinstance(ready, Resource)
    assert ready.spec["datastoreReady"] is True
    store.client.get("/api/v1/namespaces/default")
    kinds = ("Node", "ClusterInformation", "IPPool", "IPReservation", IPAM_CONFIG)
    for path in (
        *(store._kind_watch(kind)._collection().path for kind in kinds),
        "/api/v1/namespaces",
    ):  # as generations and caches do
        store.client.watch(path, store.client.list(path).revision).close()


def _write_everything(store: OrchStore) -> None:
    samples: list[tuple[Key, Value, Value, Query]] = [
        (HandleKey("h"), handle(1), handle(2), HandleQuery()),
        (AffinityKey("node1", Cidr("10.0.0.0/30")), Affinity(PENDING), Affinity(CONFIRMED), AffinityQuery("node1")),
        (BlockKey(Cidr("10.0.0.0/30")), block(), block(holder="other"), BlockQuery()),
    ]
    for key, value, other, query in samples:
        (created,) = store.write([Create(key, value)])
        assert created is not None
        (updated,) = store.write([Update(key, other, created.revision)])
        assert store.list(query) == [store.get(key)] == [updated]
        store.write([Delete(key)])
        assert store.list(query) == []


def _claim_the_node(store: OrchStore) -> None:
    """Claim node7, because an agent of another test may still renew the claim of node1."""
    claim = NodeClaim(Claimant("machine", "boot", "/var/lib/svc"))
    (entry,) = store.write([Create(NodeClaimKey("node7"), claim)])
    assert entry is not None
    store.write([Update(entry.key, claim.renewed(), entry.revision)])
    (found,) = store.list(NodeClaimQuery("node7"))
    assert found.value == claim.renewed()


def test_role_suffices_for_every_operation(cluster_of_roles: Kube, tmp_path: Path) -> None:
    grant_role(cluster_of_roles)
    with closing(open_store(cluster_of_roles, tmp_path, "token-of-plugin")) as store:
        use_every_operation(store)


def test_role_allows_reading_but_not_deleting_a_pool(cluster_of_roles: Kube, tmp_path: Path) -> None:
    """The error of a refused deletion recommends the kubeconfig of an administrator."""
    grant_role(cluster_of_roles)
    with closing(open_store(cluster_of_roles, tmp_path, "token-of-plugin")) as store:
        for kind in ("IPPool", "IPReservation"):
            with pytest.raises(NotFound):
                store.get(ResourceKey(kind, "no=such,name"))
        assert [store.get(ResourceKey("IPPool", "default"))] == store.list(POOLS)
        for delete in (pools.delete, resources_delete):
            with pytest.raises(ApiError, match="403") as refusal:
                delete(store, "default")
            assert "use the kubeconfig of an administrator" in refusal.value.details


def resources_delete(store: OrchStore, name: str) -> None:
    store.write([Delete(ResourceKey("IPReservation", name))])


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_of_the_role_is_needed(cluster_of_roles: Kube, tmp_path: Path, verb: tuple[str, str, str]) -> None:
    """Without the verb an operation is refused. The error names the verb, and the command that grants the role."""
    grant_role(cluster_of_roles, without=verb)
    with closing(open_store(cluster_of_roles, tmp_path, "token-of-plugin")) as store:
        with pytest.raises((ApiError, Forbidden), match="403") as refusal:
            use_every_operation(store)
    assert f'cannot {verb[2]} resource "{verb[1]}"' in refusal.value.msg
    assert "svcctl crd role" in refusal.value.details


# credentials


def test_error_about_a_refused_token_does_not_show_it(
    clean_kube: Kube, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The token also does not appear in the log."""
    caplog.set_level(logging.DEBUG)
    with closing(open_store(clean_kube, tmp_path, "expired-secret")) as store:
        with pytest.raises(ApiError, match="401") as refusal:
            store.list(POOLS)
    assert "renew the token" in refusal.value.details
    assert "expired-secret" not in f"{refusal.value}{caplog.text}"


def test_a_token_file_may_change_at_any_time(clean_kube: Kube, tmp_path: Path) -> None:
    """Within one session the token becomes invalid and then valid again."""
    token = tmp_path / "token"
    token.write_text(f"{ADMIN_TOKEN}\n")
    with closing(open_store(clean_kube, tmp_path, tokenFile=str(token))) as store:
        assert store.list(POOLS) == []
        token.write_text("expired")
        with pytest.raises(ApiError, match="401"):
            store.list(POOLS)
        token.write_text(ADMIN_TOKEN)
        assert store.list(POOLS) == []


def test_a_kubeconfig_may_be_replaced_at_any_time(clean_kube: Kube, tmp_path: Path) -> None:
    """The new file has another token."""
    with closing(open_store(clean_kube, tmp_path)) as store:
        assert store.list(POOLS) == []
        clean_kube.kubeconfig(tmp_path / "kubeconfig", "expired")
        with pytest.raises(ApiError, match="401"):
            store.list(POOLS)
        clean_kube.kubeconfig(tmp_path / "kubeconfig")
        assert store.list(POOLS) == []


def test_refused_token_is_retried_once(clean_kube: Kube) -> None:
    """The server may not know a new token yet."""
    with ApiProxy(clean_kube) as proxy:
        with closing(OrchStore({"orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN}, DEFAULT)) as store:
            proxy.arm(Order(Fate.ANSWERED, "^GET .*/ippools", status=401))
            assert store.list(POOLS) == []
            proxy.arm(Order(Fate.ANSWERED, "^GET .*/ippools", status=401, times=2))
            with pytest.raises(ApiError, match="401"):
                store.list(POOLS)


def test_client_certificates_are_presented(clean_kube: Kube, tmp_path: Path) -> None:
    """They come from a kubeconfig, or from single fields."""
    certificate, key = str(clean_kube.folder / "client.crt"), str(clean_kube.folder / "client.key")
    user = {"client-certificate": certificate, "client-key": key}
    fields = {
        "k8s_client_certificate": certificate,
        "k8s_client_key": key,
        "k8s_certificate_authority": str(clean_kube.authority),
    }
    for settings in (
        {"kubeconfig": str(clean_kube.kubeconfig(tmp_path / "kubeconfig", **user))},
        {"orch_api_root": f"{clean_kube.url}/api/", **fields},
    ):
        with closing(OrchStore(settings, DEFAULT)) as store:
            assert store.list(POOLS) == []


def test_program_may_provide_the_token(clean_kube: Kube, tmp_path: Path) -> None:
    """Kubeconfigs of cloud providers name such programs."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": ADMIN_TOKEN},
    }
    program = tmp_path / "give-token"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(credential))})\n")
    program.chmod(0o755)
    path = clean_kube.kubeconfig(tmp_path / "kubeconfig")
    document = json.loads(path.read_text())
    document["users"][0]["user"] = {"exec": {"apiVersion": credential["apiVersion"], "command": str(program)}}
    path.write_text(json.dumps(document))
    with closing(OrchStore({"kubeconfig": str(path)}, DEFAULT)) as store:
        assert store.list(POOLS) == []


@pytest.mark.parametrize("runs", [0, 1], ids=["at the first use", "at the renewal"])
def test_program_that_hangs_is_limited_by_the_deadline(clean_kube: Kube, tmp_path: Path, runs: int) -> None:
    """Each of the waiting calls ends in time. The program hangs after `runs` runs, whose tokens are expired."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": "expired", "expirationTimestamp": "2020-01-01T00:00:00Z"},
    }
    program, ran = tmp_path / "give-token", tmp_path / "ran"
    program.write_text(
        f"#!/bin/sh\nif [ {runs} = 0 ] || [ -e {ran} ]; then exec sleep 60; fi\ntouch {ran}\necho '{json.dumps(credential)}'\n"
    )
    program.chmod(0o755)
    path = clean_kube.kubeconfig(tmp_path / "kubeconfig")
    document = json.loads(path.read_text())
    document["users"][0]["user"] = {"exec": {"apiVersion": credential["apiVersion"], "command": str(program)}}
    path.write_text(json.dumps(document))
    clients = ApiClientPool()
    access = (("kubeconfig", str(path)),)

    def ask() -> float:
        began = time.monotonic()
        with pytest.raises(SvcError), deadline.limit(1.0):
            clients.pods(access).check_namespaces()
        return time.monotonic() - began

    with closing(clients), ThreadPoolExecutor(4) as threads:
        times = [each.result() for each in [threads.submit(ask) for _ in range(4)]]
    assert max(times) < 3.0


def test_error_names_a_wrong_authority(clean_kube: Kube, tmp_path: Path) -> None:
    """svc does not trust the server's certificate, unless the configuration skips the check."""
    path = clean_kube.kubeconfig(tmp_path / "kubeconfig")
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"]["certificate-authority"] = str(clean_kube.folder / "clients.crt")
    path.write_text(json.dumps(document))
    with closing(OrchStore({"kubeconfig": str(path)}, DEFAULT)) as store:
        with pytest.raises(Unreachable, match="does not answer") as refusal:
            store.list(POOLS)
        assert "certificate-authority" in refusal.value.details
        document["clusters"][0]["cluster"] = {"server": clean_kube.url, "insecure-skip-tls-verify": True}
        path.write_text(json.dumps(document))
        assert store.list(POOLS) == []


def test_error_names_the_url_of_an_unreachable_server() -> None:
    """The error also names the reason."""
    root = f"http://127.0.0.1:{free_ports(1)[0]}"
    with closing(OrchStore({"orch_api_root": root}, DEFAULT)) as store:
        with pytest.raises(Unreachable, match=rf"API server {root} does not answer: Connection refused:"):
            store.list(POOLS)


def test_answer_that_is_not_json_is_an_error(clean_kube: Kube) -> None:
    """A web server may answer in place of the API server."""
    with ApiProxy(clean_kube) as proxy:
        proxy.arm(Order(Fate.ANSWERED, "^GET", times=9, status=200, body=b"<html>"))
        with closing(OrchStore({"orch_api_root": proxy.url}, DEFAULT)) as store:
            with pytest.raises(StoreError, match="the answer is not JSON"):
                store.list(POOLS)


@pytest.mark.parametrize("body", [b"[1, 2]", b"null", b'"x"', b"{}", b'{"items": 5}', b'{"items": [null]}'])
def test_answer_that_is_no_list_is_an_error(clean_kube: Kube, body: bytes) -> None:
    """It does not read as an empty cluster."""
    with ApiProxy(clean_kube) as proxy:
        proxy.arm(Order(Fate.ANSWERED, "^GET .*ippools", times=9, status=200, body=body))
        with closing(OrchStore({"orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN}, DEFAULT)) as store:
            with pytest.raises(StoreError, match=r"the answer (is not a JSON object|has no list 'items' of objects)"):
                store.list(POOLS)


# memory


def test_session_uses_little_memory(clean_kube: Kube, tmp_path: Path) -> None:
    """When this test was written, a process with a session, its watches and lists had 48 MiB."""
    program = """
import sys
from pathlib import Path
from svc.datastore.open import open_backend
from svc.model.keys import BlockQuery, ResourceQuery
from svc.names import DEFAULT
store = open_backend({"kind": "orch", "kubeconfig": sys.argv[1]}, Path(), DEFAULT)
for kind in ("IPPool", "Node"):
    store.generations((kind,))
    store.generations((kind,))
    store.list(ResourceQuery(kind))
store.list(BlockQuery())
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")))
store.close()
"""
    kubeconfig = str(clean_kube.kubeconfig(tmp_path / "kubeconfig"))
    done = subprocess.run([sys.executable, "-c", program, kubeconfig], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 * 1024


# groups


def test_served_api_group_is_found(clean_kube: Kube, tmp_path: Path) -> None:
    """svc prefers the backing group to the plain group. It does not look up a group that the configuration names."""
    kubeconfig = str(clean_kube.kubeconfig(tmp_path / "kubeconfig"))
    backing, plain = (f'{{"groups":[{{"name":"{version.partition("/")[0]}"}}]}}'.encode() for version in _GROUPS)
    both = b'{"groups":[{"name":"svc.internal"},{"name":"crd.svc.internal"}]}'
    for answer, expected in ((backing, _GROUPS[0]), (plain, _GROUPS[1]), (both, _GROUPS[0]), (b'{"groups":[]}', _GROUPS[0])):
        with ApiProxy(clean_kube) as proxy:
            proxy.arm(Order(Fate.ANSWERED, r"^GET /apis$", status=200, body=answer))
            settings = {"orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN}
            with closing(OrchStore(settings, DEFAULT)) as store:
                assert store._store(POOLS).collection(POOLS).path == f"/apis/{expected}/ippools"
    with closing(OrchStore({"kubeconfig": kubeconfig, "api_group": "SVC.internal/V3"}, DEFAULT)) as store:
        assert store._store(POOLS).collection(POOLS).path == "/apis/svc.internal/v3/ippools"


_GROUPS = (DEFAULT.crd_api_version, DEFAULT.api_version)
