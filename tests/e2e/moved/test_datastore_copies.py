"""A network that moves to a copy of its datastore, such as a restored snapshot."""

import json
import time
from contextlib import nullcontext
from typing import Any

import pytest

from harness.datastores import EtcdSite
from harness.moving import SECONDS, WITH_OR_WITHOUT, MakePod, Moving, allocated, by
from harness.pod import Pod
from harness.polling import wait_until

pytestmark = pytest.mark.root


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@pytest.mark.parametrize("old_answers", [True, False], ids=["old answers", "old is gone"])
def test_network_that_moves_to_a_copy_claims_its_addresses_there(
    moving: Moving, copy: EtcdSite, pod_on: MakePod, *, old_answers: bool
) -> None:
    """A STATUS call by the new settings is enough. Otherwise, another node would assign them to its pods.

    The agent has verified the attachment of another network there shortly before.
    """
    neighbour = pod_on("neighbour", name="second", **copy.config)
    neighbour.add()
    time.sleep(SECONDS)
    pods = [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    with nullcontext() if old_answers else moving.node.cut_off():
        by(pods[0], copy.config).call("STATUS")
        wait_until(lambda: allocated(copy) == {address for pod in (neighbour, *pods) for address in pod.addresses})
        for pod in pods:
            by(pod, copy.config).delete()
        neighbour.delete()
        assert (allocated(copy), moving.settings()) == (set(), [])
    nothing: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert by(pods[0], moving.old | nothing).call("GC").status == 0  # the old etcd keeps what it has


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_rows_do_not_follow_another_network(moving: Moving, copy: EtcdSite, pod_on: MakePod) -> None:
    """While their own datastore does not answer or is locked, the network of another datastore with this clusterGUID works."""
    first, second = pod_on("first"), pod_on("second", name="second", **copy.config)
    first.add()
    second.add()
    settings = sorted(moving.settings())
    with moving.node.cut_off():
        time.sleep(SECONDS)
    moving.node.ctl("clusterinfo", "lock")
    time.sleep(SECONDS)
    moving.node.ctl("clusterinfo", "unlock")
    assert sorted(moving.settings()) == settings
    first.delete()
    second.delete()
    assert allocated(copy) == set()


def migrate(moving: Moving, new: EtcdSite) -> None:
    """Copy the content of the node's etcd."""
    old = moving.node.site
    assert isinstance(old, EtcdSite)
    for key, document in old.running.stored(f"{old.names.key_root}/"):
        new.running.put(key, json.dumps(document))


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@pytest.mark.parametrize("is_wiped", [False, True], ids=["locked", "wiped"])
@WITH_OR_WITHOUT
def test_former_datastore_stays_locked_after_a_migration(
    moving: Moving, copy: EtcdSite, pod_on: MakePod, *, agent: bool, is_wiped: bool
) -> None:
    """DEL, CHECK and GC by the new settings are the first calls after the migration."""
    node, pods = moving.node, [pod_on(f"web-{number}") for number in range(3)]
    for pod in pods:
        pod.add()
    if not agent:
        node.stop_agent()
    migrate(moving, copy)
    node.ctl("clusterinfo", "lock")
    if is_wiped:
        node.site.clear()
    checked, deleted, unknown = (by(pod, copy.config).copy(result=pod.result) for pod in pods)
    deleted.delete()
    assert checked.check().status == 0
    valid = {"cni.dev/valid-attachments": [{"containerID": checked.container, "ifname": checked.ifname}]}
    collected = by(unknown, valid).call("GC")
    assert collected.status == 0, collected
    assert allocated(copy) == set(checked.addresses)
    checked.delete()
    assert (allocated(copy), moving.settings()) == (set(), [])
    if not is_wiped:
        node.ctl("clusterinfo", "unlock")
        assert by(unknown, moving.old | {"cni.dev/valid-attachments": []}).call("GC").status == 0


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
@WITH_OR_WITHOUT
def test_networks_move_to_a_copy_one_after_the_other(moving: Moving, copy: EtcdSite, pod_on: MakePod, *, agent: bool) -> None:
    """The ADDs assign no address of a pod whose row still names the former datastore.

    The pods have interfaces of another main plugin, so that no route of the host prevents it.
    """
    pods: list[Pod] = []

    def add(network: str, settings: dict[str, Any]) -> None:
        pod = pod_on(f"pod-{len(pods)}", name=network, **settings)
        pods.append(pod.copy(plugin="svc-ipam", config=pod.config | {"type": "bridge"}))
        pods[-1].add()

    for network in ("net", "second"):
        add(network, moving.old)
    if not agent:
        moving.node.stop_agent()
    for network in ("net", "net", "second") if agent else ("net", "net"):
        add(network, copy.config)
    held = {address for pod in pods for address in pod.addresses}
    assert len(held) == sum(len(pod.addresses) for pod in pods)
    if agent:
        wait_until(lambda: allocated(copy) == held)
    for pod in pods:
        by(pod, copy.config).delete()
    assert allocated(copy) == set()
    for pod in pods[:2]:  # the former datastore keeps what it has
        assert by(pod, moving.old | {"cni.dev/valid-attachments": []}).call("GC").status == 0


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_restarted_agent_follows_calls_before_an_older_list(moving: Moving, copy: EtcdSite, pod_on: MakePod) -> None:
    moving.install(moving.old)
    time.sleep(SECONDS)
    pod = pod_on(**copy.config)
    pod.add()
    moving.node.kill_agent()
    moving.node.start_agent()
    time.sleep(SECONDS)
    assert moving.settings() == [copy.config["etcd_endpoints"]]
    pod.delete()
    assert allocated(copy) == set()
