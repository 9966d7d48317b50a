"""Settings of the node, from the network configuration and from files, seen in the kernel and in the datastore."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.host_local import held, offer, section
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.spec_rows import field
from harness.state import State, remains, store_of
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

NAMES = 'plugin = "filed"\nipam_plugin = "filed-ipam"\nstate_dir = "{}"\n'


@pytest.fixture
def files(shared_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install another names profile that uses the same pools. Return the directory of its node agent's files."""
    directory = tmp_path_factory.mktemp("files")
    profile = directory / "names.toml"
    profile.write_text(NAMES.format(directory))
    shared_node.svcctl(
        "install", "--bin-dir", str(shared_node.bin_dir), "--socket", str(shared_node.socket), "--names", str(profile)
    )
    return directory


@pytest.fixture
def filed(files: Path, shared_node: Node, sandbox: Callable[[], Netns]) -> Iterator[MakePod]:
    """Make pods of that names profile."""
    made: list[Pod] = []

    def make(**config: Any) -> Pod:
        config = netconf(**{**config, "type": "filed", "ipam": {"type": "filed-ipam", **config.get("ipam", {})}})
        made.append(Pod(shared_node, sandbox(), f"filed-{len(made)}", config, plugin="filed"))
        return made[-1]

    assert files.is_dir()
    yield make
    for pod in made:
        pod.call("DEL")
    assert remains(shared_node) == []


def endpoint(node: Node) -> Resource:
    with store_of(node) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    assert isinstance(entry.value, Resource)
    return entry.value


@pytest.mark.parametrize("queues", [1, 3])
def test_number_of_queues_applies_to_both_directions_and_ends(pods: MakePod, queues: int) -> None:
    pod = pods(num_queues=queues)
    pod.add()
    (inside,) = json.loads(pod.netns.run("ip", "-j", "-d", "link", "show", "dev", "eth0").stdout)
    for link in (pod.host_link, inside):
        assert (link["num_tx_queues"], link["num_rx_queues"]) == (queues, queues)


@field("nodename_file", "Read with every call. The node agent's own is `nodename` in the state directory, `/var/lib/svc`.")
def test_node_name_comes_from_the_file(filed: MakePod, files: Path, shared_node: Node) -> None:
    """svc reads the file at every call. `nodename` takes precedence."""
    pod = filed()
    for content, config, name in (
        (" node-a\n", {}, "node-a"),
        ("Node-B", {"hostname": "old"}, "Node-B"),
        ("node-a", {"nodename": "given"}, "given"),
    ):
        (files / "nodename").write_text(content)
        pod.config |= config
        pod.add()
        assert endpoint(shared_node).spec["node"] == name
        pod.delete()


@field("nodename_file_optional", "Without it and without `nodename`, a `nodename_file` that is given must exist.")
def test_missing_node_name_file_fails_add_and_status_but_not_del(filed: MakePod, files: Path, shared_node: Node) -> None:
    """An ADD succeeds if the file is optional."""
    pod = filed(nodename_file=str(files / "named"))
    before = State.read(shared_node)
    error = pod.failed("ADD").output
    assert (error["code"], error["msg"]) == (5, f"node name file '{files}/named' is missing or empty")
    assert pod.failed("STATUS").output["code"] == 50
    pod.delete()
    assert State.read(shared_node) == before
    pod.add(nodename_file_optional=True)
    assert pod.check().status == 0


@field("hostname", "Used after `nodename` and the file, and before the host name. svc logs a WARNING.")
def test_deprecated_hostname_is_used_with_a_warning(pods: MakePod, shared_node: Node) -> None:
    called = pods(hostname="old-node").call("ADD")
    assert endpoint(shared_node).spec["node"] == "old-node"
    assert "WARNING" in called.stderr
    assert "hostname is deprecated: set nodename" in called.stderr


def test_mtu_comes_from_the_file(filed: MakePod, files: Path) -> None:
    """It applies to both ends and to the result, unless the configuration has an MTU."""
    (files / "mtu").write_text("1390\n")
    pod = filed()
    pod.add()
    assert (pod.host_link["mtu"], pod.result["interfaces"][1]["mtu"]) == (1390, 1390)
    other = filed(mtu=1300)
    other.add()
    assert other.host_link["mtu"] == 1300


@field("require_mtu_file", "The file is `mtu` in the state directory; without it and without `mtu` the kernel chooses.")
def test_invalid_or_missing_mtu_file_fails_the_add(filed: MakePod, files: Path, shared_node: Node) -> None:
    (files / "mtu").write_text("jumbo")
    pod = filed()
    before = State.read(shared_node)
    error = pod.failed("ADD").output
    assert (error["code"], error["msg"]) == (5, f"MTU file '{files}/mtu' holds 'jumbo', which is not a number")
    assert "jumbo" in pod.failed("STATUS").output["msg"]
    pod.delete()
    assert State.read(shared_node) == before
    (files / "mtu").unlink()
    assert pod.failed("ADD", require_mtu_file=True).output["msg"] == f"MTU file '{files}/mtu' is missing or empty"
    pod.add()


def test_mtu_file_that_is_too_small_for_ipv6_fails_the_add(filed: MakePod, files: Path, shared_node: Node) -> None:
    """This includes addresses of host-local, whose families are not in the configuration."""
    (files / "mtu").write_text("1200")
    offer(shared_node)
    before = State.read(shared_node)
    assert filed(ipam={"assign_ipv6": "true"}).failed("ADD").output["code"] == 5
    given = filed()
    given.config["ipam"] = section(shared_node, "fd71::/112")
    error = given.failed("ADD").output
    assert (error["code"], error["msg"]) == (7, "an MTU of 1200 is too small for IPv6")
    assert held(shared_node) == {}
    assert State.read(shared_node) == before


@field("args", "The labels of `org.apache.mesos` become labels of the endpoint. One of them may name its namespace.")
def test_labels_of_another_orchestrator_are_on_the_endpoint(pods: MakePod, shared_node: Node) -> None:
    """The container is not a pod. One label is the namespace of its endpoint."""
    labels = [{"key": "tier", "value": "front end"}, {"key": "svc.internal/namespace", "value": "blue"}]
    args = {"org.apache.mesos": {"network_info": {"labels": {"labels": labels}}}}
    pod = pods(nodename="node1")
    pod.config["args"] = args
    pod.add()
    found = endpoint(shared_node)
    assert found.namespace == "blue"
    assert found.labels == {"svc.internal/namespace": "blue", "svc.internal/orchestrator": "cni", "tier": "front-end"}
    assert pod.check().status == 0
    assert pod.add() == pod.result
    pod.delete()
    assert remains(shared_node) == []


def test_labels_do_not_apply_to_pods(pods: MakePod, shared_node: Node) -> None:
    pod = pods(nodename="node1")
    pod.args = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop"
    labels = [{"key": "tier", "value": "front"}]
    pod.config["args"] = {"org.apache.mesos": {"network_info": {"labels": {"labels": labels}}}}
    pod.add()
    assert endpoint(shared_node).labels == {"svc.internal/namespace": "shop", "svc.internal/orchestrator": "k8s"}


@field("device_type", "Anything else is refused: pods are wired with pairs of `veth`.")
@field("dataplane_options", "See `dataplane_options.type`.")
@field("dataplane_options.type", "Anything else is refused, because svc supports no other.")
@pytest.mark.parametrize(
    "config", [{"device_type": "netkit"}, {"dataplane_options": {"type": "grpc", "socket": "/s"}}], ids=["netkit", "grpc"]
)
def test_other_devices_and_data_planes_are_refused(pods: MakePod, shared_node: Node, config: dict[str, Any]) -> None:
    before = State.read(shared_node)
    error = pods(**config).failed("ADD").output
    assert error["code"] == 7
    assert "is not served" in error["msg"]
    assert "leave it out" in error["details"]
    assert State.read(shared_node) == before


def test_fields_of_other_platforms_are_ignored(pods: MakePod) -> None:
    """svc accepts these fields, and does not use them."""
    pods(mode="vxlan", vxlan_vni=7, qps=10, burst=20, ipam_lock_file="/x", windows_use_single_network=True).add()
