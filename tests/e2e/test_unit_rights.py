"""The agent with exactly the rights of its systemd unit: capabilities, file system and system calls that gain privileges."""

import os
import shlex
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, furnish
from harness.host_local import offer, section
from harness.netns import Netns
from harness.node import BIN, Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import remains
from svc.deploy.systemd import CAPABILITIES

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

# ProtectSystem=strict with ReadWritePaths=: everything is read-only except the directories in the arguments.
CONFINED = """
set -e
mount --make-rprivate /
for directory in $0; do mount --bind "$directory" "$directory"; done
mount -o remount,ro,bind /
for directory in $0; do mount -o remount,rw,bind "$directory"; done
exec "$@"
"""


def confine(node: Node, capabilities: tuple[str, ...] = CAPABILITIES) -> None:
    """Restart the agent with the rights of the unit, but only with these capabilities."""
    if node.has_agent:
        node.stop_agent()
    for directory in (node.state_dir, node.run_dir, node.directory / "networks"):
        directory.mkdir(exist_ok=True)
    names = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)
    rights = ["setpriv", f"--bounding-set=-all,{names}", "--inh-caps=-all", "--no-new-privs", str(BIN / "svc-agent")]
    directories = [str(node.state_dir), str(node.run_dir), str(node.directory / "networks")]
    node.start_agent("unshare", "--mount", "sh", "-c", CONFINED, shlex.join(directories), *rights)


@pytest.fixture(autouse=True)
def _tools() -> None:
    for name in ("setpriv", "unshare"):
        assert shutil.which(name), f"{name} of util-linux is missing"


def use_every_verb(pod: Pod) -> None:
    pod.add()
    assert pod.check().status == 0
    valid = [{"containerID": pod.container, "ifname": "eth0"}]
    assert pod.node.call("GC", {**pod.config, "cni.dev/valid-attachments": valid}).status == 0
    assert pod.call("STATUS").status == 0
    assert pod.check().status == 0
    pod.delete()


def test_rights_of_the_unit_suffice(own_pods: MakePod, node: Node) -> None:
    """One pod uses the embedded store with forwarding, the other one uses host-local."""
    offer(node)
    confine(node)
    assert f"CapBnd:\t{capability_mask():016x}" in Path(f"/proc/{node.agent_pid}/status").read_text()
    use_every_verb(own_pods(ipam={"assign_ipv6": "true"}, container_settings={"allow_ip_forwarding": True}, mtu=1400))
    use_every_verb(own_pods(ipam=section(node, "10.66.0.0/24")))
    assert remains(node) == []


def test_rights_of_the_unit_suffice_with_etcd(tmp_path: Path, etcd_site: EtcdSite, sandbox: Callable[[], Netns]) -> None:
    with ClusterNode(tmp_path / "node", "node1", etcd_site, agent=False) as node:
        furnish(etcd_site, "node1")
        try:
            confine(node)
            use_every_verb(node.pod(sandbox()))
        finally:
            etcd_site.clear()


@pytest.mark.parametrize("missing", ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"])
def test_each_of_these_capabilities_of_the_unit_is_needed(own_pods: MakePod, node: Node, missing: str) -> None:
    confine(node, tuple(name for name in CAPABILITIES if name != missing))
    assert own_pods().call("ADD").status == 1


@pytest.mark.parametrize("has_right", [True, False])
def test_short_call_has_precedence_by_a_capability(own_pods: MakePod, node: Node, has_right: bool) -> None:
    """Without it every call works all the same. No thread keeps it."""
    confine(node, CAPABILITIES if has_right else tuple(name for name in CAPABILITIES if name != "CAP_SYS_NICE"))
    pod = own_pods()
    pod.add()
    with ThreadPoolExecutor(1) as calls:
        checks = [calls.submit(pod.check) for _ in range(50)]
        found: set[int] = set()
        while not checks[-1].done():
            found |= policies(node)
    assert {check.result().status for check in checks} == {0}
    assert (os.SCHED_RR in found) is has_right
    wait_until(lambda: policies(node) == {os.SCHED_OTHER})
    pod.delete()


def policies(node: Node) -> set[int]:
    """Return the policies of the agent's threads."""
    found = set()
    for thread in os.listdir(f"/proc/{node.agent_pid}/task"):
        with suppress(ProcessLookupError):
            found.add(os.sched_getscheduler(int(thread)) & ~os.SCHED_RESET_ON_FORK)
    return found


def capability_mask() -> int:
    numbers = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
    return sum(1 << numbers[name] for name in CAPABILITIES)
