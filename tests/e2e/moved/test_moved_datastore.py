"""A datastore that is reached by other settings than before: older attachments are verified and released there."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from harness.cluster_node import audit, remains
from harness.datastores import EtcdSite, session
from harness.etcd import Cluster
from harness.ipam import wipe
from harness.moving import SECONDS, WITH_OR_WITHOUT, MakePod, Moving, by, identify
from harness.netns import Netns
from harness.pod import Pod
from harness.polling import wait_until
from svc.model.keys import AffinityQuery, BlockQuery, HandleQuery

pytestmark = pytest.mark.root


def attach_and_move(moving: Moving, pod_on: MakePod, *, agent: bool) -> Pod:
    """Attach a pod by the old settings. Afterwards, only the new ones reach the datastore."""
    pod = pod_on()
    pod.add()
    if not agent:
        moving.node.stop_agent()
    moving.open_new()
    moving.close_old()
    return pod


@WITH_OR_WITHOUT
def test_del_by_the_new_settings_releases_everything(moving: Moving, pod_on: MakePod, *, agent: bool) -> None:
    pod = attach_and_move(moving, pod_on, agent=agent)
    by(pod, moving.new).delete()
    assert remains([moving.node]) == []
    assert moving.settings() == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_del_succeeds_while_the_former_server_is_silent(moving: Moving, pod_on: MakePod) -> None:
    pods = [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    moving.open_new()
    with moving.node.silenced(moving.node.site):
        for pod in pods:
            by(pod, moving.new).delete()
    assert remains([moving.node]) == []


def test_agent_retries_pending_releases_by_the_new_settings(moving: Moving, pod_on: MakePod) -> None:
    """The agent reads them from the installed network list, without another call."""
    pod = pod_on()
    pod.add()
    moving.close_old()
    pod.delete()
    assert len(moving.settings()) == 1
    moving.open_new()
    moving.install_new()
    wait_until(lambda: remains([moving.node]) == [])
    assert "is reached as" in moving.node.log.read_text()


def test_live_attachments_are_verified_by_the_new_settings(moving: Moving, pod_on: MakePod) -> None:
    """Their allocations are lost, and the agent claims them again."""
    pods = [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    moving.open_new()
    moving.close_old()
    with session(moving.node.site) as store:
        wipe(store, HandleQuery(), AffinityQuery(), BlockQuery())
    moving.install_new()
    wait_until(lambda: set(audit([moving.node]).allocations) == {pod.addresses[0] for pod in pods})
    for pod in pods:
        assert by(pod, moving.new).copy(result=pod.result).check().status == 0
        by(pod, moving.new).delete()


@WITH_OR_WITHOUT
def test_gc_releases_older_attachments_and_pending_releases(moving: Moving, pod_on: MakePod, *, agent: bool) -> None:
    pending, unknown = pod_on("pending"), pod_on("unknown")
    pending.add()
    unknown.add()
    if not agent:
        moving.node.stop_agent()
    moving.close_old()
    pending.delete()
    moving.open_new()
    collected = by(unknown, moving.new | {"cni.dev/valid-attachments": []}).call("GC")
    assert collected.status == 0, collected
    assert remains([moving.node]) == []


def test_add_completes_a_pending_release_by_the_new_settings(moving: Moving, pod_on: MakePod) -> None:
    pod = pod_on()
    pod.add()
    moving.node.stop_agent()
    moving.close_old()
    pod.delete()
    moving.open_new()
    again = by(pod, moving.new)
    again.add()
    assert list(audit([moving.node]).allocations) == again.addresses
    again.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_networks_with_different_endpoints_of_one_etcd_keep_them(moving: Moving, pod_on: MakePod) -> None:
    moving.open_new()
    first, second = pod_on("first"), pod_on("second", name="second", **moving.new)
    first.add()
    second.add()
    endpoints = [moving.old["etcd_endpoints"], moving.new["etcd_endpoints"]]
    assert sorted(moving.settings()) == sorted(endpoints)
    time.sleep(SECONDS)
    assert sorted(moving.settings()) == sorted(endpoints)
    first.delete()
    second.delete()


@WITH_OR_WITHOUT
def test_check_by_the_new_settings(moving: Moving, pod_on: MakePod, *, agent: bool) -> None:
    pod = attach_and_move(moving, pod_on, agent=agent)
    moved = by(pod, moving.new).copy(result=pod.result)
    assert moved.check().status == 0
    moved.delete()


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_release_that_is_pending_at_a_mistyped_address_is_completed(moving: Moving, sandbox: Callable[[], Netns]) -> None:
    """A lost row was restored with the settings of the DEL."""
    pod, typo = moving.node.pod(sandbox(), "bare", **moving.old), {"etcd_endpoints": "http://127.0.0.1:1"}
    pod.add()
    moving.node.stop_agent()
    for file in moving.node.state_dir.glob("journal.db*"):
        file.unlink()
    by(pod, typo).delete()
    assert moving.settings() == [typo["etcd_endpoints"]]
    pod.delete()
    assert remains([moving.node]) == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@WITH_OR_WITHOUT
def test_release_is_not_sent_to_another_datastore(moving: Moving, other_etcd: Cluster, pod_on: MakePod, *, agent: bool) -> None:
    """The network is moved to another etcd. The addresses of older pods are released in their own one."""
    node = moving.node
    other = {"etcd_endpoints": other_etcd.endpoints}
    with session(EtcdSite(other_etcd)) as store:
        identify(store, "another-guid")
    moving.reach(other_etcd.members[0].ports[0])
    pod = pod_on()
    pod.add()
    if not agent:
        node.stop_agent()
    node.ctl("clusterinfo", "lock")
    assert by(pod, other).failed("DEL").output["code"] == 105
    node.ctl("clusterinfo", "unlock")
    with node.cut_off():
        by(pod, other).delete()
        if agent:
            by(pod, other).call("STATUS")
            time.sleep(SECONDS)
        by(pod, other).delete()
        assert moving.settings() == [moving.old["etcd_endpoints"]]
        assert remains([node]) != []
    by(pod, other).delete()
    assert remains([node]) == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@WITH_OR_WITHOUT
def test_release_is_not_sent_to_another_datastore_after_damage(
    moving: Moving, other_etcd: Cluster, pod_on: MakePod, *, agent: bool
) -> None:
    """The journal has lost which datastores this node has reached."""
    node, other = moving.node, {"etcd_endpoints": other_etcd.endpoints}
    with session(EtcdSite(other_etcd)) as store:
        identify(store, "another-guid")
    moving.reach(other_etcd.members[0].ports[0])
    pod = pod_on()
    pod.add()
    node.stop_agent()
    with node.cut_off():
        with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
            journal.execute("DELETE FROM about WHERE name GLOB 'datastore *'")
            journal.commit()
        if agent:
            node.start_agent(recovered=False)
        by(pod, other).delete()
        assert moving.settings() == [moving.old["etcd_endpoints"]]
    by(pod, other).delete()
    assert remains([node]) == []


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_gc_succeeds_while_the_former_server_is_silent(moving: Moving, pod_on: MakePod) -> None:
    pods = [pod_on(f"web-{number}") for number in range(6)]
    for pod in pods:
        pod.add()
    moving.open_new()
    with moving.node.silenced(moving.node.site):
        since = time.monotonic()
        collected = by(pods[0], moving.new | {"cni.dev/valid-attachments": []}).call("GC")
        assert collected.status == 0, collected
        assert time.monotonic() - since < 8.0, "it has waited for the former server once, for 2 s"
    assert remains([moving.node]) == []
