"""Documents in etcd that are not JSON, lack fields or have wrong types. svc reports the document and changes nothing."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import remains as cluster_remains
from harness.datastores import EtcdSite, furnish
from harness.etcd import Cluster
from harness.netns import Netns
from harness.pod import Pod
from svc.names import DEFAULT

pytestmark = pytest.mark.root

RESOURCES = f"{DEFAULT.key_root}/resources/v3/{DEFAULT.api_version.partition('/')[0]}"
POOL, NODE = f"{RESOURCES}/ippools/pool4", f"{RESOURCES}/nodes/node1"
READY, CONFIG = f"{RESOURCES}/clusterinformations/default", f"{DEFAULT.key_root}/ipam/v2/config"

WRONG_FLAG = '{"kind": "ClusterInformation", "metadata": {"name": "default"}, "spec": {"datastoreReady": "true"}}'
WITH_POOL = {"ipam": {"type": "svc-ipam", "ipv4_pools": ["pool4"]}}
DAMAGES: list[tuple[str, str, dict[str, Any], int, str]] = [
    (POOL, "{", {}, 102, f"{POOL}: it is not JSON"),
    (POOL, "{", WITH_POOL, 102, f"{POOL}: it is not JSON"),
    (POOL, '{"kind": "IPPool", "metadata": {"name": "pool4"}}', {}, 102, "IP pool 'pool4': spec.cidr is missing"),
    (POOL, '{"kind": "IPPool", "metadata": {"name": "pool4"}}', WITH_POOL, 102, "IP pool 'pool4': spec.cidr is missing"),
    (NODE, "[]", {}, 104, f"{NODE}: it is an array, not an object"),
    (NODE, '{"kind": "Node", "metadata": {"labels": {"a": 1}}}', {}, 104, f"{NODE}: metadata.labels.a = 1 is a number"),
    (CONFIG, '{"strict_affinity": "no"}', {}, 104, f"{CONFIG}: strict_affinity = 'no' is a string, not a boolean"),
    (READY, "nonsense", {}, 104, f"{READY}: it is not JSON"),
    (READY, WRONG_FLAG, {}, 105, "datastoreReady = 'true' is a string"),
]


@pytest.fixture
def node(tmp_path: Path, etcd_site: EtcdSite) -> Iterator[ClusterNode]:
    """Start a node whose agent has no cached objects of the previous test: a watch invalidates them only after a moment."""
    with ClusterNode(tmp_path / "node", "node1", etcd_site) as node:
        yield node


@pytest.fixture
def pod(node: ClusterNode, etcd_site: EtcdSite, sandbox: Callable[[], Netns]) -> Iterator[Pod]:
    """Return a pod, in a datastore that is set up for the test."""
    furnish(etcd_site, "node1")
    yield node.pod(sandbox())
    etcd_site.clear()


def stored(etcd: Cluster) -> dict[str, str]:
    """Return keys and documents, except for node claims, which agents renew."""
    claims = f"{DEFAULT.key_root}/svc/v1/claims/"
    return {key: text for key, text in etcd.texts(f"{DEFAULT.key_root}/").items() if not key.startswith(claims)}


@pytest.mark.parametrize(
    ("key", "document", "config", "code", "expected"), DAMAGES, ids=[f"{expected} {code}" for *_, code, expected in DAMAGES]
)
def test_add_names_the_damaged_document(
    pod: Pod, node: ClusterNode, etcd: Cluster, key: str, document: str, config: dict[str, Any], code: int, expected: str
) -> None:
    """The error also names the field and the fix. A cached flag does not hide a damaged one."""
    if key == READY:
        pod.add()
        pod.delete()
    etcd.put(key, document)
    before = stored(etcd)
    error = pod.failed("ADD", **config).output
    assert error["code"] == code
    assert expected in f"{error['msg']}: {error['details']}"
    assert stored(etcd) == before
    assert cluster_remains([node]) == []


@pytest.mark.parametrize(
    "changes",
    [
        "{",
        {"allocations": None},
        {"allocations": [7] + [None] * 63},
        {"unallocated": [1, *range(1, 64)]},
        {"sequenceNumber": "7"},
    ],
    ids=str,
)
def test_damaged_block_does_not_block_other_pods(
    pod: Pod, node: ClusterNode, etcd: Cluster, sandbox: Callable[[], Netns], changes: Any
) -> None:
    """DEL of a pod of this block leaves a pending release, which a DEL completes after the repair of the block."""
    pod.add()
    ((key, sound),) = etcd.stored(f"{DEFAULT.key_root}/ipam/v2/assignment/")
    damaged = changes if isinstance(changes, str) else json.dumps(sound | changes)
    etcd.put(key, damaged)
    pod.delete()
    other = node.pod(sandbox(), "other")
    other.add()
    other.delete()
    for command in (("pool", "delete", "pool4"), ("node", "delete", "node1")):
        refusal = node.ctl(*command, check=False)
        assert (refusal.returncode, key in refusal.stderr) == (1, True), refusal
    assert etcd.get(key) == damaged
    etcd.put(key, json.dumps(sound))
    pod.delete()
    assert cluster_remains([node]) == []


def test_pool_apply_does_not_replace_an_undecodable_pool(pod: Pod, node: ClusterNode, etcd: Cluster) -> None:
    """The writer of the document may need it. `pool apply` corrects a pool that only lacks a field."""
    manifest = json.dumps(
        {"apiVersion": DEFAULT.api_version, "kind": "IPPool", "metadata": {"name": "pool4"}, "spec": {"cidr": "10.65.0.0/16"}}
    )
    etcd.put(POOL, "{")
    refusal = node.ctl("pool", "apply", "-f", "-", stdin=manifest, check=False)
    assert (refusal.returncode, f"{POOL}: it is not JSON" in refusal.stderr) == (1, True), refusal
    assert etcd.get(POOL) == "{"
    etcd.put(POOL, '{"kind": "IPPool", "metadata": {"name": "pool4", "uid": "u"}, "spec": {"novel": 1}, "other": 2}')
    node.ctl("pool", "apply", "-f", "-", stdin=manifest)
    pod.add()
    pod.delete()


def test_commands_name_an_undecodable_pool_once(pod: Pod, node: ClusterNode, etcd: Cluster) -> None:
    """The output of the command lists the pool, so svcctl does not log it. svcctl logs an undecodable block."""
    pod.add()
    etcd.put(POOL, "{")
    ((block, _),) = etcd.stored(f"{DEFAULT.key_root}/ipam/v2/assignment/ipv4/block/")
    for command in (("pool", "get"), ("ipam", "show")):
        done = node.ctl(*command)
        assert ((done.stdout + done.stderr).count(POOL), done.stderr) == (1, ""), done
    sound = etcd.get(block)
    etcd.put(block, "{")
    assert f"left out {block}: " in node.ctl("ipam", "show").stderr
    etcd.put(block, sound)
    pod.delete()


def test_unlock_repairs_the_flag(pod: Pod, node: ClusterNode, etcd: Cluster) -> None:
    """The error names this fix."""
    etcd.put(READY, WRONG_FLAG)
    assert "clusterinfo unlock" in pod.failed("DEL").output["details"]
    node.ctl("clusterinfo", "unlock")
    pod.add()
    pod.delete()
