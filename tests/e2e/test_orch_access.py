"""Who we are to the API server: rights, tokens that expire or change, authorities, and both groups of resources."""

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
from harness.kube import ADMIN_TOKEN, Kube, free_port
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


def live(store: OrchStore) -> None:
    """Everything that the plugin does on a cluster."""
    _claim_the_node(store)
    _write_everything(store)
    wire(store)
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
    ):  # as generations and caches follow them
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
    """An agent of another test may still renew the claim of node1."""
    claim = NodeClaim(Claimant("machine", "boot", "/var/lib/svc"))
    (entry,) = store.write([Create(NodeClaimKey("node7"), claim)])
    assert entry is not None
    store.write([Update(entry.key, claim.renewed(), entry.revision)])
    (found,) = store.list(NodeClaimQuery("node7"))
    assert found.value == claim.renewed()


def test_the_plugin_lives_with_its_role(cluster_of_roles: Kube, tmp_path: Path) -> None:
    """And with nothing else."""
    grant_role(cluster_of_roles)
    with closing(open_store(cluster_of_roles, tmp_path, "token-of-plugin")) as store:
        live(store)


def test_one_pool_is_read_with_the_role(cluster_of_roles: Kube, tmp_path: Path) -> None:
    """Its changes are refused, and the error names the administrator."""
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
    """Without it something is refused, and the message says what and how to grant it."""
    grant_role(cluster_of_roles, without=verb)
    with closing(open_store(cluster_of_roles, tmp_path, "token-of-plugin")) as store:
        with pytest.raises((ApiError, Forbidden), match="403") as refusal:
            live(store)
    assert f'cannot {verb[2]} resource "{verb[1]}"' in refusal.value.msg
    assert "svcctl crd role" in refusal.value.details


# credentials


def test_a_refused_token_is_told_and_not_shown(clean_kube: Kube, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After one more attempt with the token read again."""
    caplog.set_level(logging.DEBUG)
    with closing(open_store(clean_kube, tmp_path, "expired-secret")) as store:
        with pytest.raises(ApiError, match="401") as refusal:
            store.list(POOLS)
    assert "renew the token" in refusal.value.details
    assert "expired-secret" not in f"{refusal.value}{caplog.text}"


def test_a_token_file_may_change_at_any_time(clean_kube: Kube, tmp_path: Path) -> None:
    """From a good one to a bad one and back, within one session."""
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
    """By one with another token."""
    with closing(open_store(clean_kube, tmp_path)) as store:
        assert store.list(POOLS) == []
        clean_kube.kubeconfig(tmp_path / "kubeconfig", "expired")
        with pytest.raises(ApiError, match="401"):
            store.list(POOLS)
        clean_kube.kubeconfig(tmp_path / "kubeconfig")
        assert store.list(POOLS) == []


def test_one_refused_token_is_tried_again(clean_kube: Kube) -> None:
    """The server may have been a moment behind; once, not for ever."""
    with ApiProxy(clean_kube) as front:
        with closing(OrchStore({"orch_api_root": front.url, "k8s_auth_token": ADMIN_TOKEN}, DEFAULT)) as store:
            front.arm(Order(Fate.ANSWERED, "^GET .*/ippools", status=401))
            assert store.list(POOLS) == []
            front.arm(Order(Fate.ANSWERED, "^GET .*/ippools", status=401, times=2))
            with pytest.raises(ApiError, match="401"):
                store.list(POOLS)


def test_certificates_of_clients_are_shown(clean_kube: Kube, tmp_path: Path) -> None:
    """From a kubeconfig, and from single fields without one."""
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


def test_programs_may_give_the_token(clean_kube: Kube, tmp_path: Path) -> None:
    """As a kubeconfig of a cloud has it."""
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
def test_programs_that_hang_are_bounded_by_the_deadline(clean_kube: Kube, tmp_path: Path, runs: int) -> None:
    """For each of the calls that wait for one. It hangs after so many runs, whose tokens are expired already."""
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
    orchestrators = ApiClientPool()
    access = (("kubeconfig", str(path)),)

    def ask() -> float:
        began = time.monotonic()
        with pytest.raises(SvcError), deadline.limit(1.0):
            orchestrators.pods(access).check_namespaces()
        return time.monotonic() - began

    with closing(orchestrators), ThreadPoolExecutor(4) as threads:
        times = [each.result() for each in [threads.submit(ask) for _ in range(4)]]
    assert max(times) < 3.0


def test_a_wrong_authority_is_told(clean_kube: Kube, tmp_path: Path) -> None:
    """The server's certificate is not trusted, with any credentials; unless the configuration skips the check."""
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


def test_a_server_that_is_not_there_is_told() -> None:
    """By its URL, with the reason."""
    root = f"http://127.0.0.1:{free_port()}"
    with closing(OrchStore({"orch_api_root": root}, DEFAULT)) as store:
        with pytest.raises(Unreachable, match=rf"API server {root} does not answer: .*Connection refused"):
            store.list(POOLS)


def test_an_answer_of_something_else_is_told(clean_kube: Kube) -> None:
    """A page of a web server is not a list of pools."""
    with ApiProxy(clean_kube) as front:
        front.arm(Order(Fate.ANSWERED, "^GET", times=9, status=200, body=b"<html>"))
        with closing(OrchStore({"orch_api_root": front.url}, DEFAULT)) as store:
            with pytest.raises(StoreError, match="the answer is not JSON"):
                store.list(POOLS)


# memory


def test_a_session_is_small(clean_kube: Kube, tmp_path: Path) -> None:
    """A process with one, its watches and what it has read: 48 MiB when this was written."""
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


def test_the_group_that_is_served_is_found(clean_kube: Kube, tmp_path: Path) -> None:
    """The backing one before the plain one, which serves alone; a right group that is named is not asked for."""
    kubeconfig = str(clean_kube.kubeconfig(tmp_path / "kubeconfig"))
    backing, plain = (f'{{"groups":[{{"name":"{version.partition("/")[0]}"}}]}}'.encode() for version in _GROUPS)
    both = b'{"groups":[{"name":"svc.internal"},{"name":"crd.svc.internal"}]}'
    for answer, expected in ((backing, _GROUPS[0]), (plain, _GROUPS[1]), (both, _GROUPS[0]), (b'{"groups":[]}', _GROUPS[0])):
        with ApiProxy(clean_kube) as front:
            front.arm(Order(Fate.ANSWERED, r"^GET /apis$", status=200, body=answer))
            settings = {"orch_api_root": front.url, "k8s_auth_token": ADMIN_TOKEN}
            with closing(OrchStore(settings, DEFAULT)) as store:
                assert store._store(POOLS).collection(POOLS).path == f"/apis/{expected}/ippools"
    with closing(OrchStore({"kubeconfig": kubeconfig, "api_group": "SVC.internal/V3"}, DEFAULT)) as store:
        assert store._store(POOLS).collection(POOLS).path == "/apis/svc.internal/v3/ippools"


_GROUPS = (DEFAULT.crd_api_version, DEFAULT.api_version)
