"""Calls of a meta plugin, which gives a pod more than one interface: it executes the plugin once for each, as a delegate."""

from collections.abc import Callable
from typing import Final

import pytest

from harness.pod import Pod

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

VERSIONS: Final = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
ARGUMENTS: Final = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID=17"


@pytest.mark.parametrize("version", VERSIONS)
def test_delegate_gives_a_pod_two_interfaces(pods: MakePod, version: str) -> None:
    """The list declares several versions, as CNI 1.1 allows, and the meta plugin adds keys of its own to the configuration."""
    keys = {
        "cniVersion": version,
        "cniVersions": [*VERSIONS],
        "deviceID": "0000:03:02.0",
        "runtimeConfig": {"CNIDeviceInfoFile": ""},
    }
    first = pods(name="cluster", **keys)
    first.args = ARGUMENTS.format(first.container)
    second = first.copy(ifname="net1")
    second.config["name"] = "storage"
    try:
        assert [pod.add()["cniVersion"] for pod in (first, second)] == [version, version]
        assert {"eth0", "net1"} <= set(first.netns.links())
        assert not set(first.addresses) & set(second.addresses)
        if version != "0.3.1":  # which has no CHECK
            assert [pod.check().status for pod in (first, second)] == [0, 0]
    finally:
        second.delete()
    assert "net1" not in first.netns.links()
    first.delete()


def test_delegates_of_many_pods_at_once(pods: MakePod) -> None:
    """A meta plugin calls for the next interface of a pod when it has the first one; pods do not wait for each other."""
    made = [pods(cniVersion="1.0.0", name="cluster") for _ in range(8)]
    others = [pod.copy(ifname="net1") for pod in made]
    for step in (made, others):
        begun = [pod.begin("ADD") for pod in step]
        assert [call.result().status for call in begun] == [0] * len(step)
    begun = [pod.begin("DEL") for pod in (*others, *made)]
    assert {call.result().status for call in begun} == {0}
