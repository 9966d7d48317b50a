"""Why a node is not ready: STATUS names the cause within a second, in any state of servers and files."""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import IMPATIENT, ClusterNode
from harness.datastores import EtcdSite, furnish, session, set_ready
from harness.etcd import cluster
from harness.gate_server import resetting, serving
from harness.kube import Kube
from harness.netns import Netns
from harness.node import POOL4, Called, Node, netconf
from harness.orch import VERBS, grant_role, revoke_role
from harness.polling import eventually, wait_until
from harness.port_forward import PortForward
from harness.proxy import mute, proxy

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]

DEAD = "http://127.0.0.1:1"


@pytest.fixture
def base_node(site: Any, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests cut off its datastore."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=IMPATIENT) as node:
        yield node


def status(node: Node, config: dict[str, Any]) -> Called:
    return node.call("STATUS", config, container="", ifname="")


def cause(node: Node, config: dict[str, Any]) -> str:
    """Return why the node is not ready, as STATUS reports it. An earlier success counts for a second."""
    called = eventually(lambda: status(node, config), lambda called: called.status)
    assert called.output["code"] == 50, called
    text = f"{called.output['msg']} {called.output['details']}"
    assert "did not answer within" not in text.partition("datastore")[0], text
    assert "no sign of life" not in text, text
    return text


def test_a_truncated_store_is_reported_as_damaged(node: Node) -> None:
    """STATUS recommends `svcctl store restore`, as svcctl does. It does not blame the disk."""
    with Netns("sandbox") as sandbox:
        node.add(netconf(), sandbox)
        node.delete(netconf(), sandbox)
    for name in ("store.db", "store.db-wal"):
        os.truncate(node.state_dir / name, 0)
    text = cause(node, netconf())
    assert "not a database" in text
    assert "svcctl store restore" in text


def install(node: Node, config: dict[str, Any], folder: Path) -> None:
    """Install the network while the agent is stopped, and start the agent."""
    node.stop_agent()
    entry = folder / "entry.json"
    entry.write_text(json.dumps(config))
    node.prepare(
        "install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--conf-dir", str(folder / "net.d"),
        "--netconf", str(entry), "--without", "portmap", "--without", "bandwidth",
    )  # fmt: skip
    node.start_agent()


def await_cause(node: Node, config: dict[str, Any], *words: str) -> None:
    """Wait until the cause has all words. Before the agent has loaded the server's client, it names only the server."""
    until = time.monotonic() + 10
    while not all(word in (text := cause(node, config)) for word in words):
        assert "is not known to answer" in text, text
        assert time.monotonic() < until


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep the file locked during the block, as a writer does."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("name", ["journal.db", "store.db"])
def test_a_locked_file_is_the_cause(node: Node, name: str) -> None:
    with locked(node.state_dir / name):
        # On a busy machine, the first STATUS can end before the first look at the file.
        text = eventually(lambda: cause(node, netconf()), lambda found: name in found)
        assert f"process {os.getpid()} (" in text
        assert "keeps it locked: stop it" in text
    until = time.monotonic() + 20
    while status(node, netconf()).status:
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_silent_server_is_the_cause(cluster_node: ClusterNode) -> None:
    config = cluster_node.netconf()
    wait_until(lambda: status(cluster_node, config).status == 0)  # the client of the server is loaded first
    with cluster_node.silenced(cluster_node.site):
        wait_until(lambda: status(cluster_node, config).status != 0)  # a probe may have begun before
        assert "no answer in time" in cause(cluster_node, config)
    until = time.monotonic() + 20
    while status(cluster_node, config).status:
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.parametrize("outage", ["silent", "dead"])
def test_every_answer_names_the_cause_and_the_server(cluster_node: ClusterNode, outage: str, sandbox: MakeSandbox) -> None:
    """This also holds while calls with more time wait for the same server."""
    node, words = cluster_node, {"silent": "no answer in time", "dead": "refused"}[outage]
    node.site.add_pod("web-0")
    pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    pod.add()
    with node.silenced(node.site) if outage == "silent" else node.cut_off():
        cause(node, node.netconf())  # the first cause may be the broken connection
        deleting = pod.begin("DEL")
        for _ in range(4):
            text = cause(node, node.netconf())
            assert (f"127.0.0.1:{node.site.port} " in text, words in text) == (True, True), text
        assert f"127.0.0.1:{node.site.port} " in deleting.result().stderr
    pod.delete()


def test_a_dead_server_is_the_cause(cluster_node: ClusterNode) -> None:
    config = cluster_node.netconf()
    with cluster_node.cut_off():
        await_cause(cluster_node, config, "refused")


def test_a_server_that_never_answered_is_the_cause(node: Node) -> None:
    assert DEAD.removeprefix("http://") in cause(node, netconf(datastore_type="etcdv3", etcd_endpoints=DEAD))
    with mute(node.netns) as authority:
        text = cause(node, netconf(datastore_type="etcdv3", etcd_endpoints=f"http://{authority}"))
    assert authority in text


def test_a_locked_datastore_is_the_cause(cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        set_ready(store, ready=False)
    assert "locked" in cause(cluster_node, cluster_node.netconf())


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_a_slow_server_is_ready(cluster_node: ClusterNode) -> None:
    """An ADD succeeds there, although each request takes 300 ms."""
    with (
        proxy(cluster_node.site.port) as slow,
        closing(PortForward(cluster_node.netns, int(slow.authority.rpartition(":")[2]))),
    ):
        slow.delay = 0.3
        config = cluster_node.netconf(etcd_endpoints=f"http://{slow.authority}")
        until = time.monotonic() + 30
        while status(cluster_node, config).status:
            assert time.monotonic() < until
        time.sleep(1.0)
        assert status(cluster_node, config).status == 0


def test_a_missing_kubeconfig_of_policy_is_the_cause(node: Node) -> None:
    config = netconf(policy={"type": "orch"}, orch={"kubeconfig": "/nonexistent/kubeconfig"})
    assert "/nonexistent/kubeconfig" in cause(node, config)


def test_a_dead_server_of_policy_is_the_cause(node: Node) -> None:
    config = netconf(policy={"type": "orch"}, orch={"orch_api_root": DEAD})
    assert DEAD in cause(node, config)
    await_cause(node, config, "refused")


def test_servers_of_installed_networks_are_contacted_before_the_first_status(node: Node, tmp_path: Path) -> None:
    with serving(resetting, inside=node.netns) as server:
        config = netconf(policy={"type": "orch"}, orch={"orch_api_root": f"http://127.0.0.1:{server.port}"})
        install(node, config, tmp_path)
        wait_until(lambda: server.connection_count > 0)
        assert f"127.0.0.1:{server.port}" in cause(node, config)


@pytest.mark.parametrize("site", ["orch"], indirect=True)
def test_a_slow_server_of_policy_is_ready(cluster_node: ClusterNode, kube: Kube, tmp_path: Path) -> None:
    """Its first answer takes longer than STATUS may take."""
    kubeconfig = str(kube.kubeconfig(tmp_path / "kubeconfig"))
    with proxy(kube.port) as slow, closing(PortForward(cluster_node.netns, int(slow.authority.rpartition(":")[2]))):
        slow.delay = 0.3
        config = netconf(policy={"type": "orch"}, orch={"kubeconfig": kubeconfig, "orch_api_root": f"https://{slow.authority}"})
        cluster_node.apply_pool("pool4", POOL4)
        install(cluster_node, config, tmp_path)
        until = time.monotonic() + 20
        while status(cluster_node, config).status:
            assert time.monotonic() < until
        assert status(cluster_node, config).status == 0


@pytest.mark.parametrize("site", ["orch"], indirect=True)
def test_an_invalid_token_is_the_cause(cluster_node: ClusterNode, kube: Kube, tmp_path: Path) -> None:
    """The token is that of the datastore, or that of policy."""
    cluster_node.apply_pool("pool4", POOL4)
    expired = {"kubeconfig": str(kube.kubeconfig(tmp_path / "kubeconfig", "expired"))}
    for config in (cluster_node.netconf(orch=expired), netconf(policy={"type": "orch"}, orch=expired)):
        await_cause(cluster_node, config, "401", "the credentials are expired")


@pytest.fixture
def roles(kube: Kube) -> Iterator[Kube]:
    yield kube
    revoke_role(kube)


@pytest.mark.parametrize("site", ["orch"], indirect=True)
@pytest.mark.parametrize("missing", ["ipamblocks update", "ipamhandles create", "pods/status patch"])
def test_a_missing_right_to_write_is_the_cause(
    cluster_node: ClusterNode, roles: Kube, sandbox: MakeSandbox, tmp_path: Path, missing: str
) -> None:
    """No probe writes, so the last ADD decides. Each later ADD names the right, too."""
    node, (without,) = cluster_node, [verb for verb in VERBS if missing == f"{verb[1]} {verb[2]}"]
    grant_role(roles)
    orch = {"kubeconfig": str(roles.kubeconfig(tmp_path / "kubeconfig", "token-of-plugin"))}
    node.site.add_pod("web-0")
    pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", orch=orch)
    pod.add()
    pod.delete()
    wait_until(lambda: status(node, pod.config).status == 0)
    grant_role(roles, without=without)
    for _ in range(2):
        assert without[1].partition("/")[0] in pod.failed("ADD").output["msg"]
        text = cause(node, pod.config)
        assert ("403" in text, "svcctl crd role" in text) == (True, True), text
    grant_role(roles)
    pod.add()
    assert status(node, pod.config).status == 0
    pod.delete()


def test_space_alarm_of_etcd_is_the_cause_until_it_is_disarmed(node: Node, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(cluster(tmp_path, flags=[f"--quota-backend-bytes={1 << 20}"]))
        site = EtcdSite(running)
        stack.enter_context(closing(PortForward(node.netns, site.port)))
        furnish(site, "node1")
        config = netconf(nodename="node1", **site.config)
        wait_until(lambda: status(node, config).status == 0)
        with suppress(RuntimeError):
            for number in range(100):
                running.put(f"/filler/{number}", "x" * 100_000)
        assert "NOSPACE" in running.ctl("alarm", "list")
        assert "etcdctl alarm disarm" in cause(node, config)
        running.compact(running.erase("/filler/"))
        running.ctl("defrag")
        running.ctl("alarm", "disarm")
        assert status(node, config).status == 0


@pytest.mark.parametrize("site", ["orch"], indirect=True)
def test_a_program_that_provides_no_credentials_in_time_is_the_cause(
    cluster_node: ClusterNode, kube: Kube, tmp_path: Path
) -> None:
    kubeconfig = kube.kubeconfig(tmp_path / "kubeconfig")
    document = json.loads(kubeconfig.read_text())
    program = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "sleep", "args": ["3"]}
    document["users"][0]["user"] = {"exec": program}
    kubeconfig.write_text(json.dumps(document))
    cluster_node.apply_pool("pool4", POOL4)
    config = netconf(policy={"type": "orch"}, orch={"kubeconfig": str(kubeconfig)})
    for _ in range(2):
        assert str(kubeconfig) in cause(cluster_node, config)
