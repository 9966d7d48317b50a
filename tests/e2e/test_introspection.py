"""Introspection of a real agent: what it reports, and that neither calls nor datastores delay it."""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

import svc
from harness.cluster_node import IMPATIENT, ClusterNode
from harness.datastores import Site, furnish
from harness.gate_pods import LONG
from harness.gate_server import GateServer, free_port, serving, silent
from harness.netns import Netns
from harness.node import Node, agent_with, netconf
from harness.pod import Pod
from harness.polling import eventually, wait_until
from svc.admin.agent_client import NoAgent, ask
from svc.agent import server
from svc.agent.workers import MAX_WORKERS
from svc.cni import handler
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_request
from svc.datastore.etcd import connection
from svc.model.errors import CallerError

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

BARE = ("--without", "portmap", "--without", "bandwidth")
AT_ONCE_SECONDS = 0.7  # less than the agent's heartbeat, which reads requests if no other thread does
SERVERS = 10  # that do not answer: one datastore alone cannot occupy all workers
FREQUENT = agent_with({f"{server.__name__}.PERIOD_SECONDS": 0.5, f"{connection.__name__}.CALL_SECONDS": 4.0})
BRIEF = agent_with({f"{handler.__name__}.WORK_SECONDS['ADD']": 8.0})


def asked(node: Node, kind: str, **options: Any) -> Any:
    return ask(node.state_dir, node.socket, kind, **options)


def test_version_of_the_agent_is_shown(node: Node) -> None:
    assert node.svcctl("version").stdout.splitlines()[-1] == f"agent version    {svc.__version__}"
    node.stop_agent()
    done = node.svcctl("version", check=False)
    assert (done.returncode, "agent version    unknown: the agent does not run" in done.stdout) == (1, True)


def test_each_kind_describes_the_agent(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(container="c1")
    pod.add()
    state = asked(node, "state")
    assert state["failed"] == {}
    own = state["agent"]
    assert (own["version"], own["pid"], own["socket"]) == (svc.__version__, node.agent_pid, str(node.socket))
    assert 0 <= own["uptime_seconds"] < time.time() - own["started"] + 1
    assert state["attachments"] == {"added": 1}
    assert [(store["place"], store["is_open"]) for store in state["datastores"]] == [("datastore embedded", True)]
    (row,) = asked(node, "attachments")["attachments"]
    assert (row["container"], row["state"], row["addresses"], row["is_of_this_boot"]) == ("c1", "added", pod.addresses, True)
    assert (row["host_interface"], row["host_index"]) == (pod.host_name, pod.host_link["ifindex"])
    assert abs(row["since"] - time.time()) < 60
    (call,) = asked(node, "calls", container="c")["calls"]
    assert (call["verb"], call["outcome"], call["network"]) == ("ADD", "ok", "net")
    assert {"queue", "ipam", "kernel", "total"} <= call["phases"].keys()
    counters = {(each["name"], tuple(each["labels"].values())): each["value"] for each in asked(node, "metrics")}
    assert counters["calls_total", ("ADD", "ok")] == 1
    names = {thread["name"] for thread in asked(node, "threads")}
    assert {"MainThread", "worker-1", "heartbeat", "periodic", "introspection"} <= names
    pod.delete()
    assert asked(node, "attachments") == {"attachments": [], "unreadable": []}


def test_failed_call_is_an_error_of_the_state(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(ipam={"ipv4_pools": ["10.99.0.0/24"]})
    code = pod.call("ADD").output["code"]
    state = asked(node, "state")
    messages = [error["message"] for error in state["errors"] if "request" in error]
    assert [message.startswith(f"code {code}: ") for message in messages] == [True]


@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_decisions_of_a_call_are_remembered(own_pods: MakePod, node: Node, level: str) -> None:
    pod = own_pods(container=f"decided-{level}", log_level=level)
    pod.add()
    (call,) = eventually(lambda: asked(node, "calls", container=f"decided-{level}")["calls"], bool)  # noted after the reply
    assert (call["verb"], call["outcome"]) == ("ADD", "ok")
    pools, address = call["decisions"]
    assert pools == "IPv4: pools: pool4; dropped: none"
    assert address.startswith(f"IPv4: {pod.addresses[0]} of block ")
    assert any(" DEBUG " in line for line in call["lines"]) == (level == "debug")


def test_parked_call_shows_what_it_waits_for(
    node: Node, own_gate: GateServer, own_pods: MakePod, sandbox: Callable[[], Netns]
) -> None:
    pod = own_pods(container="parked", readiness_gates=[own_gate.url], **LONG)
    call = pod.begin("ADD")
    wait_until(lambda: bool(asked(node, "state")["parked"]))
    wait_until(lambda: "503" in asked(node, "state")["parked"][0]["waits_for"])
    (parked,) = asked(node, "state")["parked"]
    assert (parked["verb"], parked["container"]) == ("ADD", "parked")
    assert own_gate.url in parked["waits_for"]
    assert parked["since"] <= time.time() < parked["deadline"]
    assert asked(node, "state")["attachments"] == {"waiting": 1}
    pod.call("DEL")
    call.result()
    wait_until(lambda: asked(node, "state")["parked"] == [])


def send_adds(stack: ExitStack, node: Node, url: str, netns: Netns, number: int) -> None:
    """Send ADDs in a network with this datastore. Their clients wait until the stack is closed."""
    config = netconf(name=f"net{url[-5:]}", datastore_type="etcdv3", etcd_endpoints=url, nodename="node1")
    for each in range(number):
        environment = {
            "CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"stuck{each}-{url[-5:]}", "CNI_NETNS": netns.path,
            "CNI_IFNAME": "eth0", "CNI_PATH": str(node.bin_dir), "CNI_ARGS": "",
        }  # fmt: skip
        client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        client.connect(str(node.socket))
        client.sendall(pack_request(CallInput("svc", environment, orjson.dumps(config))))


@pytest.mark.slow
def test_stuck_workers_delay_no_request(tmp_path: Path, sandbox: Callable[[], Netns]) -> None:
    """Every worker waits for a datastore that does not answer, and further calls wait in the queue.

    Several requests, because the agent's heartbeat would read one of them soon by chance.
    """
    with Node(tmp_path / "node", agent_program=BRIEF) as node, ExitStack() as stack:
        netns = sandbox()
        for _ in range(SERVERS):
            silent_server = stack.enter_context(serving(silent, inside=node.netns))
            send_adds(stack, node, f"http://127.0.0.1:{silent_server.port}", netns, 60)
        wait_until(lambda: asked(node, "state")["queue"]["workers"]["idle"] == 0)
        times = []
        for _ in range(5):
            began = time.monotonic()
            state = asked(node, "state")
            times.append(time.monotonic() - began)
        assert sorted(times)[-2] < AT_ONCE_SECONDS, times
        assert state["queue"]["workers"]["threads"] == state["queue"]["running"] == MAX_WORKERS
        assert state["queue"]["waiting"] > 0
        assert len(state["running"]) == MAX_WORKERS
        assert {call["verb"] for call in state["running"]} == {"ADD"}
        node.kill_agent()


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True)
def test_pending_release_shows_its_age_and_reason(site: Site, tmp_path: Path, sandbox: Callable[[], Netns]) -> None:
    """This holds after a restart of the agent as well."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=IMPATIENT) as node:
        furnish(site, "node1")
        site.add_pod("web-0")
        pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
        pod.add()
        began = time.time()
        with node.cut_off():
            pod.delete()
            for _ in range(2):
                (release,) = asked(node, "state")["pending_releases"]
                assert began <= release["since"] <= time.time()
                assert (release["pod"], release["addresses"]) == ("default/web-0", pod.addresses)
                assert f":{site.port}" in release["reason"]
                assert release["attempts"] >= 1
                node.stop_agent()
                node.start_agent(recovered=False)
        pod.delete()
        wait_until(lambda: asked(node, "state")["pending_releases"] == [])
        site.clear()


def test_dead_datastore_of_an_installed_network_is_named(node: Node, tmp_path: Path) -> None:
    """The agent has probed it since its start. Its credentials are not shown."""
    url = f"http://127.0.0.1:{free_port(node.netns)}"
    network = netconf(name="remote", datastore_type="etcdv3", etcd_endpoints=url, nodename="node1")
    source = tmp_path / "net.conflist"
    source.write_text(json.dumps({"cniVersion": "1.0.0", "name": "remote", "plugins": [network]}))
    directories = "--bin-dir", str(node.bin_dir), "--conf-dir", str(tmp_path / "conf")
    node.svcctl("install", *directories, "--netconf", str(source), "--socket", str(node.socket), *BARE)
    (installed,) = (tmp_path / "conf").glob("*.conflist")
    installed.write_text(installed.read_text().replace("http://", "http://root:hunter2@"))  # which an installation refuses
    node.stop_agent()
    node.start_agent()
    wait_until(lambda: [(s["is_up"], s["networks"]) for s in asked(node, "state")["datastores"]] == [(False, ["remote"])])
    state = asked(node, "state")
    (store,) = state["datastores"]
    assert (store["node"], store["is_ready"]) == ("node1", None)
    assert store["error"]["message"]
    assert store["checked"] <= time.time()
    assert [error["message"] for error in state["errors"]] == [store["error"]["message"]]
    assert "hunter2" not in json.dumps(state)
    assert "degraded" in node.svcctl("status", check=False).stdout


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True)
def test_datastore_of_an_attachment_is_probed(site: Site, tmp_path: Path, sandbox: Callable[[], Netns]) -> None:
    """No network list is installed."""

    def found() -> list[tuple[bool, bool | None]]:
        return [(store["is_up"], store["is_ready"]) for store in asked(node, "state")["datastores"]]

    with ExitStack() as stack:
        node = stack.enter_context(ClusterNode(tmp_path / "node", "node1", site, agent_program=FREQUENT))
        furnish(site, "node1")
        stack.callback(site.clear)
        site.add_pod("web-0")
        pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
        pod.add()
        wait_until(lambda: found() == [(True, True)])
        wait_until(lambda: asked(node, "state")["datastores"][0]["checked"] is not None)
        with node.cut_off():
            wait_until(lambda: found() == [(False, None)])
            (store,) = asked(node, "state")["datastores"]
            assert str(site.port) in store["error"]["message"]
        wait_until(lambda: found() == [(True, True)])
        pod.delete()


def test_killed_agent_is_named(node: Node) -> None:
    node.kill_agent()
    with pytest.raises(NoAgent, match=r"the agent does not run: no process listens on .*: start it"):
        asked(node, "state")
    node.socket.unlink()
    with pytest.raises(NoAgent, match="does not exist"):
        asked(node, "state")
    node.start_agent()


def test_agent_is_found_by_its_state_directory(node: Node, tmp_path: Path) -> None:
    """A wrong run directory is not an obstacle."""
    assert ask(node.state_dir, tmp_path / "elsewhere" / "agent.sock", "state")["agent"]["pid"] == node.agent_pid


def test_other_users_are_told_to_be_root(node: Node) -> None:
    """They can neither enter the directory nor open the socket."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            ask(node.state_dir, node.socket, "state")
            os.write(writer, b"answered")
        except Exception as failure:
            os.write(writer, str(failure).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as told:
        assert "run this as root" in told.read()


@pytest.mark.parametrize("options", [{"limit": "1"}, {"container": 5}])
def test_bad_options_are_refused(node: Node, options: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match=r"the agent \(of version .*\) refused: "):
        asked(node, "calls", **options)


def test_requests_leave_nothing(node: Node) -> None:
    """Clients that misbehave leave no descriptor and no thread in the agent. It may open a few others in this time."""

    def used() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{node.agent_pid}/fd")), len(os.listdir(f"/proc/{node.agent_pid}/task"))

    def is_answered() -> bool:
        """On a busy machine the agent may still serve the clients before, and refuse more."""
        with suppress(CallerError):
            return bool(asked(node, "threads"))
        return False

    rounds, before = 10, used()
    for _ in range(rounds):
        for start in (b"SVCI", b"SVCI" + b"\0" * 40, b"SVCI" + b"\xff" * 32):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(str(node.socket))
                client.sendall(start)
        wait_until(is_answered)
    wait_until(lambda: all(now < then + rounds for now, then in zip(used(), before, strict=True)))
