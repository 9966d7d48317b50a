"""A datastore that is locked, as for a migration. Calls after the lock must not change it."""

import json

import pytest

from harness.cluster_node import ClusterNode, audit
from harness.datastores import session, set_ready
from harness.ipam import document
from harness.pod import Pod
from harness.state import pod_links
from svc.attach.datastore_ready import KEY as READY
from svc.datastore.api import Delete

pytestmark = pytest.mark.root

LOCKED = 105


def test_calls_are_refused_until_svcctl_unlocks_the_datastore(web: Pod, cluster_node: ClusterNode) -> None:
    """ADD, DEL and STATUS fail and change nothing."""
    other = web.copy(container="c2", ifname="eth1")
    web.add()
    cluster_node.ctl("clusterinfo", "lock")
    before = stored(cluster_node)
    assert other.failed("ADD").output["code"] == LOCKED
    assert web.failed("ADD").output["code"] == LOCKED, "this holds for an identical ADD as well"
    assert web.failed("DEL").output["code"] == LOCKED
    assert web.failed("STATUS").output["code"] == 50
    assert stored(cluster_node) == before
    assert list(pod_links(cluster_node)) == [web.host_name]
    cluster_node.ctl("clusterinfo", "unlock")
    assert web.check().status == 0
    other.add()
    other.delete()
    web.delete()


@pytest.mark.parametrize("rounds", [4])
def test_every_call_reads_the_lock(web: Pod, cluster_node: ClusterNode, rounds: int) -> None:
    """The agent does not rely on the value that an earlier call has read."""
    for _ in range(rounds):
        web.add()
        set_lock(cluster_node, ready=False)
        assert web.failed("DEL").output["code"] == LOCKED
        set_lock(cluster_node, ready=True)
        web.delete()
        set_lock(cluster_node, ready=False)
        assert web.failed("ADD").output["code"] == LOCKED
        assert audit([cluster_node]).entries() == []
        set_lock(cluster_node, ready=True)


def test_error_explains_how_to_initialise_the_datastore(web: Pod, cluster_node: ClusterNode) -> None:
    """A datastore without the flag counts as locked."""
    web.add()
    with session(cluster_node.site) as store:
        store.write([Delete(READY)])
    for verb in ("ADD", "DEL"):
        error = web.failed(verb).output
        assert (error["code"], "clusterinfo init" in error["details"]) == (LOCKED, True)
    cluster_node.ctl("clusterinfo", "init")
    web.delete()


def set_lock(node: ClusterNode, *, ready: bool) -> None:
    with session(node.site) as store:
        set_ready(store, ready=ready)


def stored(node: ClusterNode) -> list[str]:
    with session(node.site) as store:
        return [json.dumps([str(key), revision, value]) for key, revision, value in document(store)]
