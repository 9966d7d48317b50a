"""CHECK succeeds if an attachment is as ADD made it, and otherwise names every difference."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pytest

from harness.netns import Netns
from harness.node import Called
from harness.pod import Pod
from harness.polling import eventually
from harness.spec_rows import field
from harness.state import State, store_of
from svc.datastore.api import Create, Delete, Update
from svc.model.keys import HandleKey, ResourceQuery
from svc.model.resource import Resource

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

GATEWAY6 = "fe80::ecee:eeff:feee:eeee"


@pytest.fixture
def dual(pods: MakePod) -> Pod:
    pod = pods(ipam={"assign_ipv6": "true"})
    pod.add()
    return pod


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize("family", ["4", "6", "both"])
def test_check_of_an_unchanged_attachment_succeeds(pods: MakePod, version: str, family: str) -> None:
    ipam = {"assign_ipv4": "false" if family == "6" else "true", "assign_ipv6": "false" if family == "4" else "true"}
    pod = pods(cniVersion=version, ipam=ipam, mtu=1400, num_queues=2)
    pod.add()
    called = pod.check()
    assert (called.status, called.stdout) == (0, b"")


def test_check_changes_nothing(dual: Pod) -> None:
    before = State.read(dual.node)
    assert dual.check().status == 0
    assert State.read(dual.node) == before


def test_additions_of_later_plugins_are_not_differences(dual: Pod) -> None:
    dual.netns.run("ip", "address", "add", "198.51.100.7/24", "dev", "eth0")
    dual.netns.run("ip", "route", "add", "203.0.113.0/24", "dev", "eth0")
    later = json.loads(json.dumps(dual.result))
    later["interfaces"].append({"name": "ifb7"})
    later["ips"].append({"address": "198.51.100.7/24", "interface": 1})
    assert dual.check(prevResult=later).status == 0


def test_mac_is_compared_with_the_previous_result(dual: Pod) -> None:
    dual.netns.run("ip", "link", "set", "eth0", "address", "0a:00:5e:00:53:01")
    assert "has MAC 0a:00:5e:00:53:01" in dual.check().output["msg"]
    later = json.loads(json.dumps(dual.result))
    later["interfaces"][1]["mac"] = "0a:00:5e:00:53:01"
    assert dual.check(prevResult=later).status == 0
    later["interfaces"][1]["mac"] = "0a:00:5e:00:53:02"
    assert "not 0a:00:5e:00:53:02" in dual.check(prevResult=later).output["msg"]


# differences in the kernel


@dataclass(frozen=True)
class Damage:
    """A command for one side, which gets the pod's values, and the text that CHECK must then report."""

    side: str
    command: str
    expected: str


DAMAGES = {
    "IPv4 address removed": Damage("sandbox", "ip address del {v4}/32 dev eth0", "eth0 lacks address {v4}/32"),
    "IPv6 address removed": Damage("sandbox", "ip address del {v6}/128 dev eth0", "eth0 lacks address {v6}/128"),
    "default route removed": Damage("sandbox", "ip route del default", "no route to 0.0.0.0/0 by eth0"),
    "default route elsewhere": Damage("sandbox", "ip route replace default dev eth0", "no route to 0.0.0.0/0 by eth0"),
    "link route removed": Damage("sandbox", "ip route del 169.254.1.1", "no route to 169.254.1.1/32 by eth0"),
    "IPv6 default route removed": Damage("sandbox", "ip -6 route del default", "no route to ::/0 by eth0"),
    "sandbox link down": Damage("sandbox", "ip link set eth0 down", "sandbox interface eth0 is down"),
    "sandbox MTU": Damage("sandbox", "ip link set eth0 mtu 1300", "sandbox interface eth0 has MTU 1300, not 1500"),
    "sandbox MAC": Damage("sandbox", "ip link set eth0 address 02:00:00:00:00:07", "eth0 has MAC 02:00:00:00:00:07"),
    "sandbox link renamed": Damage(
        "sandbox", "ip link set eth0 down && ip link set eth0 name eth9", "interface eth0 is missing in the sandbox"
    ),
    "sandbox link replaced": Damage(
        "sandbox", "ip link del eth0 && ip link add eth0 type bridge", "sandbox interface eth0 is not the peer of {host}"
    ),
    "host link down": Damage("host", "ip link set {host} down", "host interface {host} is down"),
    "host MTU": Damage("host", "ip link set {host} mtu 1300", "host interface {host} has MTU 1300, not 1500"),
    "host MAC": Damage("host", "ip link set {host} address 02:00:00:00:00:07", "{host} has MAC 02:00:00:00:00:07"),
    "host link gone": Damage("host", "ip link del {host}", "interface {host} is missing in the host"),
    "host link renamed": Damage(
        "host", "ip link set {host} down && ip link set {host} name other0", "interface {host} is missing in the host"
    ),
    "host route removed": Damage("host", "ip route del {v4} dev {host}", "the host has no route to {v4} by {host}"),
    "host IPv6 route removed": Damage("host", "ip -6 route del {v6} dev {host}", "the host has no route to {v6} by {host}"),
    "next hop removed": Damage("host", f"ip address del {GATEWAY6}/64 dev {{host}}", f"{{host}} lacks address {GATEWAY6}"),
    "proxy ARP off": Damage(
        "host", "echo 0 > /proc/sys/net/ipv4/conf/{host}/proxy_arp", "host sysctl net/ipv4/conf/{host}/proxy_arp is 0, not 1"
    ),
    "proxy ARP delayed": Damage(
        "host", "echo 80 > /proc/sys/net/ipv4/neigh/{host}/proxy_delay", "net/ipv4/neigh/{host}/proxy_delay is 80, not 0"
    ),
    "forwarding off": Damage(
        "host", "echo 0 > /proc/sys/net/ipv6/conf/{host}/forwarding", "net/ipv6/conf/{host}/forwarding is 0, not 1"
    ),
    "router advertisements accepted": Damage(
        "host", "echo 1 > /proc/sys/net/ipv6/conf/{host}/accept_ra", "net/ipv6/conf/{host}/accept_ra is 1, not 0"
    ),
    "container forwards": Damage("sandbox", "echo 1 > /proc/sys/net/ipv4/ip_forward", "net/ipv4/ip_forward is 1, not 0"),
    "container forwards IPv6": Damage(
        "sandbox", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/forwarding is 1, not 0"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_check_reports_a_difference_in_the_kernel(dual: Pod, damage: Damage) -> None:
    v4, v6 = dual.addresses
    values = {"v4": v4, "v6": v6, "host": dual.host_name}
    netns = dual.node.netns if damage.side == "host" else dual.netns
    netns.run("sh", "-e", "-c", damage.command.format(**values))
    output = dual.failed("CHECK", prevResult=dual.result).output
    assert output["code"] == 107
    assert damage.expected.format(**values) in output["details"]


def test_first_difference_is_in_the_message_and_all_in_the_details(dual: Pod) -> None:
    v4, v6 = dual.addresses
    dual.netns.run("ip", "address", "del", f"{v6}/128", "dev", "eth0")
    dual.node.netns.run("ip", "route", "del", v4, "dev", dual.host_name)
    output = dual.failed("CHECK", prevResult=dual.result).output
    assert f"lacks address {v6}/128" in output["msg"]
    assert f"no route to {v4} by" not in output["msg"]
    assert f"no route to {v4} by" in output["details"]


def test_another_sandbox_is_a_difference(dual: Pod, sandbox: Callable[[], Netns]) -> None:
    called = dual.call("CHECK", netns=sandbox().path, prevResult=dual.result)
    assert called.output["code"] == 107
    assert "interface eth0 is missing in the sandbox" in called.output["details"]


# differences in the datastore


def test_check_reports_a_missing_endpoint(dual: Pod) -> None:
    with store_of(dual.node) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
        store.write([Delete(entry.key)])
    assert "the datastore has no endpoint" in dual.failed("CHECK", prevResult=dual.result).output["details"]


@pytest.mark.parametrize("change", [{"containerID": "stranger"}, {"ipNetworks": ["10.65.9.9/32"]}], ids=["owner", "address"])
def test_check_reports_a_changed_endpoint(dual: Pod, change: dict[str, object]) -> None:
    with store_of(dual.node) as store:
        (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
        assert isinstance(entry.value, Resource)
        before = dict(entry.value.spec)
        entry.value.spec.update(change)
        (changed,) = store.write([Update(entry.key, entry.value, entry.revision)])
        assert changed is not None
        assert "the datastore has no endpoint" in dual.failed("CHECK", prevResult=dual.result).output["details"]
        entry.value.spec.update(before)
        store.write([Update(entry.key, entry.value, changed.revision)])
    assert dual.check().status == 0


def test_check_reports_an_address_that_is_not_assigned(dual: Pod) -> None:
    """The agent may assign the address again between the deletion and the CHECK."""
    with closing(sqlite3.connect(dual.node.state_dir / "store.db", isolation_level=None)) as connection:

        def check_without_blocks() -> Called:
            connection.execute("DELETE FROM entries WHERE path LIKE '/svc/ipam/v2/assignment/%'")
            return dual.check()

        called = eventually(check_without_blocks, lambda called: called.status)
        assert dual.addresses[0] in called.output["details"]
        connection.execute("DELETE FROM entries WHERE path LIKE '/svc/ipam/%'")


def test_check_reports_a_missing_handle(dual: Pod) -> None:
    key = HandleKey(f"net.{dual.container}")
    with store_of(dual.node) as store:
        entry = store.get(key)
        store.write([Delete(key, entry.revision)])
        output = dual.failed("CHECK", prevResult=dual.result).output
        store.write([Create(key, entry.value)])
    assert f"belong to net.{dual.container}" in output["details"]


# invalid calls


def test_check_without_previous_result_is_refused(dual: Pod) -> None:
    output = dual.failed("CHECK").output
    assert (output["code"], output["msg"]) == (7, "prevResult is missing")


@field("prevResult", "CHECK compares kernel and datastore with it; additions of later plugins do not matter.")
def test_previous_result_of_another_pod_is_refused(dual: Pod, pods: MakePod) -> None:
    other = pods(ipam={"assign_ipv6": "true"})
    other.add()
    output = dual.failed("CHECK", prevResult=other.result).output
    assert output["code"] == 107
    assert f"prevResult lacks address {dual.addresses[0]}" in output["details"]


def test_malformed_previous_result_is_refused(dual: Pod) -> None:
    broken = dual.result | {"ips": [{"address": "10.65.0.999/32"}], "routes": 7}
    output = dual.failed("CHECK", prevResult=broken).output
    assert output["code"] == 7
    assert "prevResult.ips[0].address" in output["details"]
    assert "prevResult.routes" in output["details"]


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1"])
def test_versions_before_0_4_0_do_not_have_check(dual: Pod, version: str) -> None:
    output = dual.failed("CHECK", cniVersion=version, prevResult=dual.result).output
    assert (output["code"], output["cniVersion"]) == (1, version)
    assert "does not allow CHECK" in output["msg"]


def test_container_that_was_never_added_is_unknown(pods: MakePod, dual: Pod) -> None:
    output = pods().failed("CHECK", prevResult=dual.result).output
    assert output["code"] == 3


def test_container_that_was_deleted_is_unknown(dual: Pod) -> None:
    dual.delete()
    assert dual.failed("CHECK", prevResult=dual.result).output["code"] == 3
