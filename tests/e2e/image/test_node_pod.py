"""The pod of the DaemonSet on a real node: its rights, what it installs, and calls of the installed executable."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.kube import Kube
from harness.kubelet_node import BIN_DIR, CONF_DIR
from harness.svc_pods import AGENT, INSTALL_WATCH, NODE_POD, SvcPods, variables
from harness.workloads import addresses, delete_pod, put_pod, read_pod
from svc.attach.journal_reader import read_rows
from svc.attach.record import Record
from svc.deploy.systemd import CAPABILITIES
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.slow]

Json = dict[str, Any]

NUMBERS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}


@pytest.fixture(scope="module")
def running(pods: SvcPods) -> Iterator[SvcPods]:
    """Return the node with its pod."""
    pods.start_node_pod()
    yield pods
    pods.end(NODE_POD)


def call(pods: SvcPods, verb: str, sandbox: str, **config: Any) -> Any:
    """Call the installed executable as a runtime does, and return its reply."""
    found = json.loads(pods.real.host("cat", str(CONF_DIR / "10-svc.conflist")).stdout)
    entry = found["plugins"][0] | {"name": found["name"], "cniVersion": found["cniVersion"]} | config
    called = variables(verb, sandbox, f"/var/run/netns/{sandbox}")
    done = pods.real.host(str(BIN_DIR / "svc"), stdin=json.dumps(entry), check=False, **called)
    assert done.returncode == 0, f"{done.stdout} {done.stderr} {pods.log(AGENT)[-3000:]}"
    return json.loads(done.stdout) if done.stdout else None


def make_namespace(pods: SvcPods, name: str) -> None:
    """Make a pod without containers, and a network namespace as containerd does: /run/netns itself is not a mount."""
    pods.real.node.site.add_pod(name, "node2")
    pods.real.host("sh", "-c", f"touch /run/netns/{name} && unshare --net=/run/netns/{name} ip link set lo up")


def remove_namespace(pods: SvcPods, name: str) -> None:
    pods.real.host("sh", "-c", f"umount /run/netns/{name} && rm /run/netns/{name}")


def records(pods: SvcPods) -> list[Record]:
    """Return the attachments of the node, as its journal records them."""
    return list(read_rows(pods.real.library / Path(DEFAULT.state_dir).name / "journal.db").records)


def sysctl(pods: SvcPods, path: str, *inside: str) -> str:
    return pods.real.host(*inside, "cat", f"/proc/sys/net/{path}").stdout.strip()


def test_containers_have_the_capabilities_of_the_unit_and_no_others(running: SvcPods) -> None:
    for container, names in ((AGENT, CAPABILITIES), (INSTALL_WATCH, ())):
        status = running.real.host("cat", f"/proc/{running.pid(container)}/status").stdout
        mask = sum(1 << NUMBERS[name] for name in names)
        assert f"CapBnd:\t{mask:016x}" in status
        assert f"CapEff:\t{mask:016x}" in status
        assert "Seccomp:\t2" in status  # filtered


def test_root_file_system_is_read_only(running: SvcPods) -> None:
    for container in (AGENT, INSTALL_WATCH):
        assert "Read-only file system" in running.run_in(container, "touch", "/new", check=False)


def test_installer_places_static_executables_that_wait_and_a_network_list(running: SvcPods) -> None:
    for name in ("svc", "svc-ipam"):
        assert "INTERP" not in running.real.host("readelf", "-l", str(BIN_DIR / name)).stdout
        assert "wait=60" in running.real.host("cat", str(BIN_DIR / f"{name}.install")).stdout.splitlines()
    assert running.real.host("stat", "-c", "%a %u", str(CONF_DIR / "10-svc.conflist")).stdout == "600 0\n"


def test_call_of_the_host_is_served_and_leaves_nothing(running: SvcPods) -> None:
    """The sysctls of the host side are written through the mounted folder, those of the sandbox through a procfs of its own."""
    running.real.host("sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")
    make_namespace(running, "one")
    try:
        result = call(running, "ADD", "one")
        (host,) = (each["name"] for each in result["interfaces"] if "sandbox" not in each)
        assert sysctl(running, "ipv4/ip_forward") == "1"
        assert sysctl(running, f"ipv4/conf/{host}/proxy_arp") == "1"
        assert sysctl(running, f"ipv6/conf/{host}/accept_ra") == "0"
        inside = "nsenter", "--net=/run/netns/one"
        assert sysctl(running, "ipv4/ip_forward", *inside) == "0"
        assert result["ips"][0]["address"].split("/")[0] in running.real.host(*inside, "ip", "address").stdout
        call(running, "DEL", "one")
        assert host not in running.real.host("ip", "link").stdout
    finally:
        remove_namespace(running, "one")


def test_namespace_that_is_mounted_later_is_seen_by_the_agent(running: SvcPods) -> None:
    """Otherwise the agent would take the sandbox for gone."""
    make_namespace(running, "late")
    try:
        for path in ("/run/netns/late", "/var/run/netns/late"):
            outside = running.real.host("stat", "-c", "%d %i", path).stdout
            assert running.run_in(AGENT, "stat", "-c", "%d %i", path) == outside
        kind = running.run_in(AGENT, "stat", "-f", "-c", "%T", "/run/netns/late").strip()
        assert kind == "nsfs"
    finally:
        remove_namespace(running, "late")
    assert "late" not in running.run_in(AGENT, "ls", "/run/netns")


def test_namespace_of_a_process_is_not_taken_for_gone(running: SvcPods) -> None:
    """The agent may not look into processes with more rights, but it sees that they exist."""
    pid = running.real.host("pidof", "containerd").stdout.split()[0]
    assert "No such file" not in running.run_in(AGENT, "stat", f"/proc/{pid}/ns/net", check=False)
    assert "No such file" in running.run_in(AGENT, "stat", "/proc/4194303/ns/net", check=False)


def test_pod_of_kubelet_gets_an_address(running: SvcPods, kube: Kube) -> None:
    """containerd names the namespace by a path below /var/run/netns, which the agent sees."""
    put_pod(kube, "web")
    try:
        (address,) = running.real.wait("the pod has an address", lambda: addresses(read_pod(kube, "web")))
        (record,) = records(running)
        assert record.addresses == [address]
        assert record.result is not None
        (path,) = (each["sandbox"] for each in record.result["interfaces"] if each.get("sandbox"))
        assert path.startswith("/var/run/netns/cni-")
        assert running.run_in(AGENT, "stat", "-f", "-c", "%T", path).strip() == "nsfs"
    finally:
        delete_pod(kube, "web")
    running.real.wait("nothing is attached", lambda: not records(running))


@pytest.mark.parametrize("path", ["/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/proc/sys/kernel/hostname"])
def test_agent_has_the_identity_of_the_host(running: SvcPods, path: str) -> None:
    expected = running.real.host("cat", path).stdout
    assert running.run_in(AGENT, "cat", path) == expected
    assert expected.strip() or path == "/etc/machine-id"  # a machine may have none


def test_host_local_assigns_addresses_and_keeps_them_on_the_host(running: SvcPods) -> None:
    """The agent executes a plugin of the host in its container."""
    make_namespace(running, "local")
    ipam = {"type": "host-local", "subnet": "10.99.0.0/24"}
    try:
        result = call(running, "ADD", "local", ipam=ipam, name="local")
        assert running.real.host("ls", "/var/lib/cni/networks/local").stdout
        (address,) = (each["address"].split("/")[0] for each in result["ips"])
        assert address in running.real.host("ls", "/var/lib/cni/networks/local").stdout
        call(running, "DEL", "local", ipam=ipam, name="local")
        assert address not in running.real.host("ls", "/var/lib/cni/networks/local").stdout
    finally:
        remove_namespace(running, "local")
