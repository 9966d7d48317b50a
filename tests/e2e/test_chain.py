"""Chains of svc with the reference plugins portmap and bandwidth, executed as a runtime does."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.cni_runtime import Chain, PluginError
from harness.netns import Netns
from harness.node import Node
from harness.spec_rows import statement
from harness.state import audit, remains
from harness.traffic import answers, exchange, neighbour, seconds, server

REFERENCE = Path("/usr/lib/cni")
NEEDED = [*(REFERENCE / name for name in ("portmap", "bandwidth")), *map(shutil.which, ("iptables", "tc"))]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not all(path and Path(path).exists() for path in NEEDED),
        reason="needs Debian's containernetworking-plugins, iptables and iproute2",
    ),
]

HOST_PORT, POD_PORT = 8080, 80
NODE_ADDRESS = "192.0.2.1"
SERVICES = 4000
SIZE_BYTES = 500_000
RATE, BURST = 8_000_000, 400_000  # bits per second, bits
ONE_WAY_SECONDS = (SIZE_BYTES * 8 - BURST) / RATE  # the minimum for a transfer
SVC: dict[str, Any] = {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
PORTMAP: dict[str, Any] = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
BANDWIDTH: dict[str, Any] = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
CAPABILITIES = {
    "portMappings": [{"hostPort": HOST_PORT, "containerPort": POD_PORT, "protocol": "tcp"}],
    "bandwidth": {"ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST},
}

MakeChain = Callable[..., Chain]


@pytest.fixture(scope="module")
def only_iptables(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a PATH without ip6tables. If portmap finds it, its CHECK requires IPv6 rules for an IPv4 pod, and fails."""
    directory = tmp_path_factory.mktemp("tools")
    (directory / "iptables").symlink_to(str(shutil.which("iptables")))
    return str(directory)


@pytest.fixture
def chain(shared_node: Node, only_iptables: str) -> Iterator[MakeChain]:
    """Return a function that makes chains for one pod, in which a server runs. They must leave nothing on the node."""
    with Netns("sandbox") as sandbox, server(sandbox, POD_PORT):
        made: list[Chain] = []

        def make(*plugins: dict[str, Any], version: str = "1.0.0") -> Chain:
            conflist = {"cniVersion": version, "name": "net", "plugins": list(plugins)}
            paths = [shared_node.bin_dir, REFERENCE]
            made.append(Chain(shared_node.netns, paths, conflist, sandbox, capabilities=CAPABILITIES, tools=only_iptables))
            return made[-1]

        yield make
        for each in made:
            with suppress(PluginError):
                each.delete()
        assert remains(shared_node) == []


@pytest.fixture
def outside(shared_node: Node) -> Iterator[Netns]:
    with neighbour(shared_node.netns, "uplink", "192.0.2.50/24") as netns:
        yield netns


def host_link(chain: Chain) -> str:
    assert chain.result is not None
    return str(chain.result["interfaces"][0]["name"])


def address_of(chain: Chain) -> str:
    assert chain.result is not None
    return str(chain.result["ips"][0]["address"].split("/")[0])


def shapers(node: Node) -> list[str]:
    """List interfaces with a token bucket, and those that redirect their incoming traffic."""
    queues = node.netns.run("tc", "qdisc", "show").stdout.splitlines()
    return sorted(f"{line.split()[1]} {line.split()[4]}" for line in queues if line.split()[1] in ("tbf", "ingress"))


def forwarded(node: Node) -> list[str]:
    """Return the rules for single pods. The shared chains stay for the next pod."""
    return [line for line in node.netns.run("iptables-save", "-t", "nat").stdout.splitlines() if "CNI-DN-" in line]


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_chain_works_in_every_common_version(shared_node: Node, chain: MakeChain, outside: Netns, version: str) -> None:
    """ADD sets host port and limits, and DEL removes them. CHECK, which 0.3.1 does not have, succeeds."""
    whole = chain(SVC, PORTMAP, BANDWIDTH, version=version)
    result = whole.add()
    ifb = result["interfaces"][2]["name"]
    assert result["cniVersion"] == version
    assert shapers(shared_node) == sorted([f"ingress {host_link(whole)}", f"tbf {host_link(whole)}", f"tbf {ifb}"])
    assert answers(outside, NODE_ADDRESS, HOST_PORT)
    if version != "0.3.1":
        whole.check()
    whole.delete()
    assert (shapers(shared_node), forwarded(shared_node)) == ([], [])
    assert not answers(outside, NODE_ADDRESS, HOST_PORT)
    assert sorted(shared_node.netns.links()) == ["to-neighbour", "uplink"]


@statement(
    "2.10",
    "portmap",
    "An entry with `type` `portmap`, `snat` and the capability `portMappings` gives pods their host ports.",
    "The reference plugin, after svc in the list; the runtime passes the ports to it.",
)
def test_host_port_can_be_reached_from_everywhere(shared_node: Node, chain: MakeChain, outside: Netns) -> None:
    """Neighbours, the node (also on its loopback) and the pod itself can connect."""
    whole = chain(SVC, PORTMAP)
    whole.add()
    assert answers(outside, NODE_ADDRESS, HOST_PORT)
    assert answers(shared_node.netns, NODE_ADDRESS, HOST_PORT)
    assert answers(shared_node.netns, "127.0.0.1", HOST_PORT)
    assert answers(whole.sandbox, NODE_ADDRESS, HOST_PORT)
    assert not answers(outside, NODE_ADDRESS, HOST_PORT + 1)


@statement(
    "2.10",
    "bandwidth",
    "An entry with `type` `bandwidth` and the capability `bandwidth` limits the traffic of pods.",
    "The reference plugin as well: it acts on the host's end of the pair, which is the first interface of the result.",
)
def test_traffic_is_limited_in_both_directions(shared_node: Node, chain: MakeChain) -> None:
    """The server returns the bytes that it gets, and both directions need the minimum time."""
    whole = chain(SVC, BANDWIDTH)
    whole.add()
    assert seconds(shared_node.netns, address_of(whole), POD_PORT, SIZE_BYTES) > 2 * ONE_WAY_SECONDS * 0.8


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_one_direction_can_be_limited_alone(shared_node: Node, chain: MakeChain, direction: str) -> None:
    """The host's end of the pair limits traffic to the pod. Another interface with a queue limits traffic from the pod."""
    whole = chain(SVC, BANDWIDTH)
    whole.capabilities = {"bandwidth": {f"{direction}Rate": RATE, f"{direction}Burst": BURST}}
    result = whole.add()
    if direction == "ingress":
        assert shapers(shared_node) == [f"tbf {host_link(whole)}"]
    else:
        assert shapers(shared_node) == [f"ingress {host_link(whole)}", f"tbf {result['interfaces'][2]['name']}"]
    assert seconds(shared_node.netns, address_of(whole), POD_PORT, SIZE_BYTES) > ONE_WAY_SECONDS * 0.8


@statement(
    "2.10",
    "others",
    "No other plugins are supported in the chain.",
    "If one comes before svc, the log has a warning; those after it get the result of svc, which does not check them. "
    "The ADD succeeds.",
)
def test_log_warns_of_a_plugin_before_svc(shared_node: Node, chain: MakeChain, tmp_path: Path) -> None:
    """The ADD still returns the result of svc."""
    script = """#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.7/24"}]}'
exit 0
"""
    (tmp_path / "early").write_text(script)
    (tmp_path / "early").chmod(0o755)
    log = tmp_path / "cni.log"
    whole = chain({"type": "early"}, SVC | {"log_file_path": str(log)}, PORTMAP)
    whole.paths.append(tmp_path)
    result = whole.add()
    assert [ip["address"].split("/")[0] for ip in result["ips"]] == [address_of(whole)] != ["192.0.2.7"]
    assert "WARNING" in log.read_text()
    assert "another plugin comes before this one in the chain, which is not supported" in log.read_text()


def test_plugin_after_the_supported_ones_gets_the_whole_result(shared_node: Node, chain: MakeChain, tmp_path: Path) -> None:
    """A plugin of another project works as well."""
    script = "import json, sys\nprint(json.dumps(json.load(sys.stdin)['prevResult']))\n"
    (tmp_path / "late").write_text(f"#!{sys.executable}\n{script}")
    (tmp_path / "late").chmod(0o755)
    whole = chain(SVC, PORTMAP, {"type": "late"})
    whole.paths.append(tmp_path)
    result = whole.add()
    assert result["interfaces"][0]["name"] == host_link(whole)
    assert list(audit(shared_node).allocations) == [address_of(whole)]


def test_chain_without_bandwidth_is_not_limited(shared_node: Node, chain: MakeChain, outside: Netns) -> None:
    whole = chain(SVC, PORTMAP)
    whole.add()
    assert shapers(shared_node) == []
    assert seconds(shared_node.netns, address_of(whole), POD_PORT, SIZE_BYTES) < ONE_WAY_SECONDS
    assert answers(outside, NODE_ADDRESS, HOST_PORT)
    whole.check()


@statement(
    "2.10",
    "removed",
    "Without its section a plugin has no effect.",
    "Then pods have no host ports, or no limits, and everything else works.",
)
def test_chain_without_portmap_has_no_host_port(shared_node: Node, chain: MakeChain, outside: Netns) -> None:
    whole = chain(SVC, BANDWIDTH)
    whole.add()
    assert len(shapers(shared_node)) == 3
    assert forwarded(shared_node) == []
    assert not answers(outside, NODE_ADDRESS, HOST_PORT)
    whole.check()


@pytest.fixture
def services(shared_node: Node, tmp_path: Path) -> Iterator[None]:
    """Add the rules of many services to the node, as kube-proxy does: a chain for each, and one that selects it."""
    rules = [":SERVICES - [0:0]", *(f":SVC-{number} - [0:0]" for number in range(SERVICES))]
    for number in range(SERVICES):
        address = f"10.96.{number >> 8}.{number & 255}/32"
        rules.append(f"-A SERVICES -d {address} -p tcp -m tcp --dport 80 -j SVC-{number}")
        rules.append(f"-A SVC-{number} -p tcp -j DNAT --to-destination 192.0.2.50:80")
    file = tmp_path / "rules"
    file.write_text("\n".join(["*nat", *rules, "-A OUTPUT -j SERVICES", "COMMIT", ""]))
    shared_node.netns.run("iptables-restore", "--noflush", str(file))
    yield
    shared_node.netns.run("iptables", "-t", "nat", "-F")
    shared_node.netns.run("iptables", "-t", "nat", "-X")


@statement(
    "8",
    "portmap",
    "Draining a node is slow if there are 100 nodes and 4000 services or more.",
    "A limit of the portmap plugin, whose rules are among those of the services: it is slow, but it removes all rules "
    "of a pod. Without its section the limit does not apply.",
)
@pytest.mark.usefixtures("services")
def test_host_ports_are_removed_beside_many_services(shared_node: Node, chain: MakeChain, outside: Netns) -> None:
    whole = chain(SVC, PORTMAP)
    whole.add()
    assert answers(outside, NODE_ADDRESS, HOST_PORT)
    whole.delete()
    assert forwarded(shared_node) == []
    assert not answers(outside, NODE_ADDRESS, HOST_PORT)


def test_chain_can_be_deleted_after_a_plugin_has_failed(shared_node: Node, chain: MakeChain, tmp_path: Path) -> None:
    """The error names the plugin. The runtime may call DEL for the whole chain any number of times."""
    script = """#!/bin/sh
[ "$CNI_COMMAND" = DEL ] || { echo '{"cniVersion": "1.0.0", "code": 7, "msg": "never"}'; exit 1; }
"""
    (tmp_path / "never").write_text(script)
    (tmp_path / "never").chmod(0o755)
    whole = chain(SVC, PORTMAP, BANDWIDTH, {"type": "never"})
    whole.paths.append(tmp_path)
    with pytest.raises(PluginError, match="ADD of never: 7 never"):
        whole.add()
    assert (len(shapers(shared_node)), len(forwarded(shared_node)) > 0) == (3, True)
    whole.delete()
    whole.delete()
    assert (shapers(shared_node), forwarded(shared_node)) == ([], [])
    assert remains(shared_node) == []


def test_version_1_1_0_works_only_without_the_reference_plugins(shared_node: Node, chain: MakeChain) -> None:
    """Debian's reference plugins do not support this version."""
    whole = chain(SVC, version="1.1.0")
    whole.add()
    whole.check()
    assert exchange(shared_node.netns, address_of(whole), POD_PORT, b"hello") == b"hello"
    with pytest.raises(PluginError, match="incompatible CNI versions"):
        chain(SVC, PORTMAP, version="1.1.0").add()
