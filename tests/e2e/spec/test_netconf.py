"""Sections 2.1, 2.3 and 2.4: the effects of the fields of the network configuration."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import session
from harness.ipam import affinities, handles, put_pool
from harness.pod import Pod
from harness.spec_rows import field, statement

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
DUAL = {"assign_ipv6": "true"}


def refused(pod: Pod, *words: str) -> None:
    """Require that the network configuration is refused with an error that contains the words."""
    error = pod.failed("ADD").output
    assert error["code"] == 7, error
    for text in words:
        assert text in error["msg"] + error["details"]


# 2.1


@field(
    "name",
    "It is the first part of an attachment's handle, `NAME.CONTAINER`, with each of its dots doubled.",
    choice="Any name of at most 124 characters from letters, digits, `_`, `.` and `-` that starts with a letter or digit.",
)
def test_handle_begins_with_the_name_of_the_network(make: MakePod, cluster_node: ClusterNode) -> None:
    pod = make(name="Blue.net-1")
    pod.add()
    with session(cluster_node.site) as store:
        assert set(handles(store)) == {f"Blue..net-1.{pod.container}"}
    refused(make("web-1", name="blue net"), "name = 'blue net'")
    refused(make("web-2", name=None), "name is missing")
    make("web-3", name="blue_net").add()


@field(
    "cniVersion",
    "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0; the result has the format of the requested version.",
    choice="Without it the version is 0.1.0, which did not have the field yet.",
)
@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", None])
def test_result_has_the_format_of_the_version(pods: MakePod, version: str | None) -> None:
    pod = pods(cniVersion=version)
    result = pod.add()
    assert result.get("cniVersion") == (version or "0.1.0")
    old = (version or "0.1.0") < "0.3.0"
    assert ("ip4" in result, "ips" in result) == (old, not old)
    assert ("version" in result.get("ips", [{}])[0]) == ("0.3.0" <= (version or "") < "1.0.0")


@field(
    "type",
    "The runtime finds the executable of this name where `svcctl install` has put it.",
    choice="The name is not compared with that of the executable, so a runtime can call it under another name.",
)
def test_type_is_the_executable(pods: MakePod) -> None:
    pod = pods()
    assert (pod.node.bin_dir / pod.config["type"]).exists()
    pod.add()
    del pod.config["type"]
    refused(pod, "type is missing")


@field(
    "nodename",
    "Blocks and endpoints name this node; without it, the host name in lower case. White space around it is ignored.",
)
@pytest.mark.parametrize(("given", "known"), [(" Node-X ", "Node-X"), (None, socket.gethostname().lower())])
def test_blocks_belong_to_the_named_node(make: MakePod, cluster_node: ClusterNode, given: str | None, known: str) -> None:
    registered = known.lower()  # like the names of Kubernetes nodes
    cluster_node.site.add_node(registered)
    known = known if given is None else registered
    pod = make(nodename=given and given.replace("Node-X", registered))
    pod.add()
    with session(cluster_node.site) as store:
        assert {host for host, _ in affinities(store)} == {known}


@field(
    "datastore_type",
    "`etcdv3`: shared by all nodes; `orch`: custom resources of the Kubernetes API; `embedded`: a file of the node.",
    choice="`embedded` is an addition of svc for a single node; the default is `etcdv3`. `kubernetes` means `orch`.",
)
def test_datastore_is_the_one_named(make: MakePod, cluster_node: ClusterNode) -> None:
    pod = make()
    pod.add()
    with session(cluster_node.site) as store:
        assert len(handles(store)) == 1
    refused(make("web-1", datastore_type="consul"), "datastore_type = 'consul'", '"etcdv3", "orch", "embedded"')


@field("log_level", "Lines below it are not written. The value is not case-sensitive.")
@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("ERROR", {"ERROR"}),
        ("WARNING", {"WARNING", "ERROR"}),
        ("INFO", {"INFO", "WARNING", "ERROR"}),
        (None, {"INFO", "WARNING", "ERROR"}),
        ("debug", {"DEBUG", "INFO", "WARNING", "ERROR"}),
    ],
)
def test_lines_below_the_level_are_not_written(pods: MakePod, tmp_path: Path, level: str | None, seen: set[str]) -> None:
    """The calls cause a line of each level: a DEL without its namespace, an ADD without its pool, and an invalid log file."""
    pod = pods(log_level=level, log_file_path=str(tmp_path))
    lines = pod.call("DEL", netns="/run/netns/nowhere").stderr
    lines += pod.failed("ADD", ipam={**pod.config["ipam"], "ipv4_pools": ["nowhere"]}).stderr
    assert set(re.findall(r"^\S+ \S+ (\w+) \[", lines, re.MULTILINE)) == seen
    refused(pods(log_level="LOUD"), '"ERROR", "WARNING", "INFO", "DEBUG"')


@field(
    "log_file_path",
    "Every line of a call is appended, and missing directories are created. `svcctl install` sets it to"
    " `/var/log/svc/cni/cni.log`.",
    choice="The installed configuration sets the default; the program has none. Without the field svc writes no file, because"
    " removing the option must disable it.",
)
def test_log_file_has_the_configured_path(pods: MakePod, tmp_path: Path) -> None:
    log = tmp_path / "cni" / "cni.log"
    pod = pods(log_file_path=str(log))
    pod.add()
    assert f"container={pod.container}" in log.read_text()
    before = log.read_text()
    pods().add()
    assert log.read_text() == before, "without the option svc writes no log file"
    refused(pods(log_file_path="cni.log"), "log_file_path = 'cni.log'", "absolute")


@field(
    "mtu",
    "It applies to both ends of the pair.",
)
@pytest.mark.parametrize("mtu", [1400, 0])
def test_mtu_applies_to_both_ends(pods: MakePod, mtu: int) -> None:
    pod = pods(mtu=mtu)
    pod.add()
    (inner,) = pod.netns.ip("link", "show", "dev", "eth0")
    assert {inner["mtu"], pod.host_link["mtu"]} == {mtu or 1500}


@statement("8", "num_queues", "One queue, unless another number is given.", "The kernel has the same default.")
@field(
    "num_queues",
    "`num_rx_queues` and `num_tx_queues` of both ends of the pair; 0 is 1.",
    choice="0 to 4096, which is the limit of the kernel; 0 means 1.",
)
@pytest.mark.parametrize(("config", "queues"), [({}, 1), ({"num_queues": 3}, 3)], ids=["default", "three"])
def test_queues_apply_to_both_ends(pods: MakePod, config: dict[str, int], queues: int) -> None:
    pod = pods(**config)
    pod.add()
    (inner,) = pod.netns.ip("-d", "link", "show", "dev", "eth0")
    for link in (inner, pod.host_link):
        assert (link["num_rx_queues"], link["num_tx_queues"]) == (queues, queues)


@field("ipam", "A network configuration without it is refused.")
def test_ipam_section_is_required(pods: MakePod) -> None:
    pod = pods()
    del pod.config["ipam"]
    refused(pod, "ipam is missing")


@statement(
    "2.1",
    "standard error",
    "All log lines go to standard error too.",
    "The agent sends the lines of a call back with its reply, and the executable prints them.",
)
def test_standard_error_has_the_lines_of_the_log_file(pods: MakePod, tmp_path: Path) -> None:
    log = tmp_path / "cni.log"
    called = pods(log_file_path=str(log)).call("ADD")
    assert called.status == 0
    assert called.stderr == log.read_text() != ""


# 2.3


@field(
    "ipam.type",
    "`svc-ipam` is the address management of svc, within the ADD. Its executable also works with other main plugins.",
)
def test_unknown_ipam_type_is_refused(make: MakePod, cluster_node: ClusterNode) -> None:
    make().add()
    with session(cluster_node.site) as store:
        assert len(handles(store)) == 1
    refused(make("web-1", ipam={"type": "dhcp"}), "ipam.type = 'dhcp'")


@field("ipam.assign_ipv4", "A string; true and false without quotes are refused.")
@pytest.mark.parametrize(("ipam", "families"), [({}, [4]), ({"assign_ipv4": "false", **DUAL}, [6])], ids=["default", "false"])
def test_ipv4_is_assigned_unless_switched_off(make: MakePod, ipam: dict[str, str], families: list[int]) -> None:
    pod = make(ipam=ipam)
    pod.add()
    assert [6 if ":" in address else 4 for address in pod.addresses] == families
    refused(make("web-1", ipam={"assign_ipv4": True}), "ipam.assign_ipv4 = true", '"true", "false"')


@field("ipam.assign_ipv6", "A string, like `assign_ipv4`.", choice="A network that assigns neither family is refused.")
@pytest.mark.parametrize(("ipam", "families"), [({}, [4]), (DUAL, [4, 6])], ids=["default", "true"])
def test_ipv6_is_assigned_when_switched_on(make: MakePod, ipam: dict[str, str], families: list[int]) -> None:
    pod = make(ipam=ipam)
    pod.add()
    assert [6 if ":" in address else 4 for address in pod.addresses] == families
    refused(make("web-1", ipam={"assign_ipv4": "false"}), "leaves no address to assign")


@field(
    "ipam.ipv4_pools",
    "Names and CIDRs may be mixed; they are tried in their order.",
    choice="A named pool is used regardless of its node selector, namespace selector and assignment mode.",
)
@pytest.mark.parametrize("pool", ["blue", "10.71.0.0/29"])
def test_ipv4_pools_are_names_or_ranges(make: MakePod, cluster_node: ClusterNode, pool: str) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "blue", "10.71.0.0/29", blockSize=30, nodeSelector="!all()")
    pod = make(ipam={"ipv4_pools": [pool]})
    pod.add()
    assert pod.addresses[0].startswith("10.71.0.")


@field("ipam.ipv6_pools", "As `ipv4_pools`. It is neither read nor checked if IPv6 is not assigned.")
@pytest.mark.parametrize("pool", ["blue6", "fd71::/120"])
def test_ipv6_pools_apply_only_with_ipv6(make: MakePod, cluster_node: ClusterNode, pool: str) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "blue6", "fd71::/120")
    pod = make(ipam={**DUAL, "ipv6_pools": [pool]})
    pod.add()
    assert pod.addresses[1].startswith("fd71::")
    other = make("web-1", ipam={"ipv6_pools": ["no-such-pool"]})
    other.add()
    assert len(other.addresses) == 1


@statement(
    "2.3",
    "CNI_ARGS IP",
    "A certain address can be requested with the variable `IP` of `CNI_ARGS`.",
    "It is assigned from the enabled pool that contains it. If it is assigned already, the ADD fails and names its holder.",
    choice="Only this address is assigned, even if the network assigns two families. A family that"
    " the network does not assign is refused.",
)
def test_address_of_the_arguments_is_assigned(make: MakePod) -> None:
    pod = make(args="IP=10.65.3.4", ipam=DUAL)
    pod.add()
    assert pod.addresses == ["10.65.3.4"]
    error = make("web-1", args="IP=10.65.3.4").failed("ADD").output
    assert (error["code"], f"net.{pod.container}" in error["details"]) == (103, True)


# 2.4


@field("container_settings", "See `container_settings.allow_ip_forwarding`; any other key in it is ignored.")
def test_container_settings_are_an_object(pods: MakePod) -> None:
    pods(container_settings={"other": 1}).add()
    refused(pods(container_settings=[]), "container_settings = []")


@field(
    "container_settings.allow_ip_forwarding",
    "`net.ipv4.ip_forward` and `net.ipv6.conf.all.forwarding` of the sandbox are set to it, even if they had another value.",
)
@pytest.mark.parametrize(("settings", "value"), [({}, "0"), ({"allow_ip_forwarding": True}, "1")], ids=["default", "true"])
def test_container_forwards_only_when_allowed(pods: MakePod, settings: dict[str, bool], value: str) -> None:
    pod = pods(container_settings=settings, ipam=DUAL)
    paths = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    for path in paths:
        pod.netns.run("sh", "-c", f"echo {1 - int(value)} > /proc/sys/{path}")
    pod.add()
    assert [pod.netns.sysctl(path) for path in paths] == [value, value]
