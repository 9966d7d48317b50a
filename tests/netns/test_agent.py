"""The agent in the test's own process: calls on its socket, and what it restores by itself."""

import gc
import json
import os
import shutil
import sqlite3
import stat
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import svc
from harness.fault_injection import Kind
from harness.gate_server import GateServer, free_port, serving, status
from harness.inprocess import Host
from harness.inprocess_agent import ResidentNode
from harness.netns import Netns
from harness.polling import wait_until
from harness.reference_plugins import require_plugin
from harness.svcctl import Cli
from svc.agent import server
from svc.attach import store_identity
from svc.attach.record import ADDING
from svc.cni import verbs
from svc.cni.frame import Handover
from svc.model.endpoint import KIND
from svc.model.keys import ResourceQuery
from svc.netconf.installed import Installed, add_installed
from svc.right_of_way import RIGHT_OF_WAY

pytestmark = pytest.mark.root

DUAL = {"type": "svc-ipam", "assign_ipv6": "true"}
LOCAL = {"type": "host-local", "ranges": [[{"subnet": "10.71.0.0/30"}]]}
VALID: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
NONE: dict[str, Any] = {"cni.dev/valid-attachments": None}
WEB = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"


@pytest.fixture
def node(tmp_path: Path, netns: Netns) -> ResidentNode:
    netns.run("ip", "link", "set", "lo", "up")
    return ResidentNode(tmp_path)


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all periodic tasks often, and wait shortly after a data loss."""
    monkeypatch.setattr(store_identity, "HOLD_SECONDS", 0.3)
    for name in ("LOOK_SECONDS", "PLACES_SECONDS", "CHECK_SECONDS", "PERIOD_SECONDS"):
        monkeypatch.setattr(server, name, 0.03)


@pytest.fixture
def gate() -> Iterator[GateServer]:
    with serving(status(503)) as running:
        yield running


def install(node: ResidentNode, folder: Path) -> None:
    """Record the network as `svcctl install` does."""
    path = folder / "net.conflist"
    path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [node.config]}))
    add_installed(node.state_dir, Installed("", "/usr/lib/cni", (), str(path)))


def own_links(netns: Netns) -> list[str]:
    return [link for link in netns.links() if link.startswith("svc")]


def test_calls_of_all_verbs(node: ResidentNode, netns: Netns, pod: Netns, tmp_path: Path) -> None:
    install(node, tmp_path)

    def body() -> None:
        assert node.call("VERSION")["supportedVersions"][-1] == "1.1.0"
        assert node.call("STATUS") is None
        result = node.call("ADD", pod, ipam=DUAL)
        assert [ip["address"].split("/")[0] for ip in result["ips"]] == node.rows()[0].addresses
        assert node.call("ADD", pod, ipam=DUAL) == result
        assert node.call("CHECK", pod, prevResult=result) is None
        assert node.call("CHECK", pod)["msg"] == "prevResult is missing"
        assert node.call("GC")["msg"] == "cni.dev/valid-attachments is missing"
        assert node.call("GC", **VALID) is None
        assert len(node.rows()) == 1
        assert node.call("DEL", pod) is None
        assert node.call("MAKE", pod)["code"] == 4
        assert node.call("STATUS", ipam={"type": "svc-ipam", "ipv4_pools": ["10.1.0.0/16"]})["code"] == 50

    assert node.serve(body) == 0
    assert node.rows() == []
    assert own_links(netns) == []


def test_calls_leave_no_garbage(node: ResidentNode, pod: Netns) -> None:
    """Every call waits while the collector runs. Objects that refer to each other occupy memory until then."""
    rounds = 10

    def call_all() -> None:
        result = node.call("ADD", pod, ipam=DUAL)
        assert node.call("CHECK", pod, prevResult=result) is None
        assert node.call("STATUS") is None
        assert node.call("DEL", pod) is None

    def body() -> None:
        call_all()  # imports, and fills caches
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                call_all()
            assert gc.collect() < 5 * rounds  # of threads of the test run
        finally:
            gc.enable()

    assert node.serve(body) == 0


def test_add_gives_way_to_short_calls(node: ResidentNode, pod: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    """While CHECK or STATUS runs, an ADD pauses before each step, but not for ever. A short call that fails ends as well."""
    ways = RIGHT_OF_WAY
    steps: list[int] = []

    def counted() -> None:
        steps.append(ways._number)
        type(ways).give_way(ways)

    monkeypatch.setattr(ways, "give_way", counted)

    def body() -> None:
        ways.begin()  # as by a CHECK that takes long
        result = node.call("ADD", pod, ipam=DUAL)
        ways.end()
        assert len(steps) > 5
        assert set(steps) == {1}
        assert node.call("CHECK", pod, prevResult=result) is None
        assert node.call("DEL", pod) is None
        assert "has no attachment" in node.call("CHECK", pod, prevResult=result)["msg"]
        wait_until(lambda: ways._number == 0)  # the agent answers first

    assert node.serve(body) == 0


def test_ipam_plugin(node: ResidentNode, netns: Netns, pod: Netns) -> None:
    """It assigns addresses for another main plugin, and makes no interface."""

    def call(verb: str, **config: Any) -> Any:
        return node.call(verb, pod, plugin="svc-ipam", **config)

    def body() -> None:
        assert call("STATUS") is None
        result = call("ADD", type="ptp", ipam=DUAL)
        assert [sorted(ip) for ip in result["ips"]] == [["address", "gateway"]] * 2
        assert call("CHECK", type="ptp", prevResult=result) is None
        assert "the IPAM plugin of svc was called" in call("ADD", ipam=LOCAL)["msg"]
        assert call("GC", **VALID) is None
        assert call("DEL", type="ptp", ipam=LOCAL) is None

    assert node.serve(body) == 0
    assert node.rows() == []
    assert own_links(netns) == pod.links() == []


def test_calls_that_are_refused(
    node: ResidentNode, netns: Netns, pod: Netns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GC releases attachments although its datastore has an error. A DEL needs no readable names profile."""

    def fail(*_: object) -> None:
        raise LookupError("no such thing")

    def body() -> None:
        bypass = node.call("ADD", pod, feature_control={"ip_addrs_no_ipam": True})
        assert "the container is not a pod and has no annotations" in bypass["msg"]
        first = {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/24"}]}
        assert "ips" in node.call("ADD", pod, hostname="node2", prevResult=first)
        log = (tmp_path / "log").read_text()
        assert "hostname is deprecated" in log
        assert "its result is lost" in log
        assert node.call("DEL", netns)["code"] == 8
        assert node.call("CHECK", pod, prevResult=first)["code"] == 107
        assert node.call("DEL", pod, profile=str(tmp_path / "missing")) is None
        assert node.call("ADD", pod, profile=str(tmp_path / "missing"))["code"] == 5
        assert "ips" in node.call("ADD", pod)
        assert node.call("GC", datastore_type="floppy", **NONE)["code"] == 7
        assert node.rows() == []
        assert node.call("GC", ipam={}, **NONE)["code"] == 7
        access: dict[str, Any] = {"orch": {"kubeconfig": "/missing"}, "policy": {"type": "k8s"}}
        assert "kubeconfig '/missing' cannot be read" in node.call("STATUS", **access)["msg"]
        monkeypatch.setitem(verbs.HANDLERS, "CHECK", fail)
        error = node.call("CHECK", pod)
        assert "LookupError: no such thing" in error["msg"] + error["details"]

    assert node.serve(body) == 0
    assert node.rows() == []
    assert own_links(netns) == []


def test_network_with_addresses_of_host_local(node: ResidentNode, netns: Netns, pod: Netns, tmp_path: Path) -> None:
    require_plugin("host-local")
    ipam = LOCAL | {"dataDir": str(tmp_path / "networks"), "routes": [{"dst": "10.0.0.0/8"}]}

    def body() -> None:
        assert node.call("STATUS", ipam=ipam) is None
        result = node.call("ADD", pod, ipam=ipam)
        assert [ip["address"] for ip in result["ips"]] == ["10.71.0.2/32"]
        assert node.call("ADD", pod, ipam=ipam) == result
        assert node.call("CHECK", pod, prevResult=result, ipam=ipam) is None
        assert "no address is free" in node.call("STATUS", ipam=ipam)["msg"]
        assert "no address is free" in node.call("ADD", pod, container="c2", ipam=ipam)["msg"]
        (tmp_path / "networks" / "net" / "10.71.0.2").unlink()
        assert node.call("CHECK", pod, prevResult=result, ipam=ipam)["code"] == 107
        assert node.call("GC", ipam=ipam, **NONE) is None

    assert node.serve(body) == 0
    assert node.rows() == []
    assert own_links(netns) == []


def test_interrupted_and_pending_attachments_are_undone_at_the_start(
    node: ResidentNode, netns: Netns, pod: Netns, caplog: pytest.LogCaptureFixture
) -> None:
    with Host(node.state_dir, netns) as host:
        for container in ("c1", "c2"):
            host.add(None, container=container)
        record = host.context.journal.all()[0]
        record.state = ADDING
        host.context.journal.update(record)
        host.faults.arm(Kind.OUTAGE)
        host.delete(None, container="c2")
    caplog.set_level("INFO", "svc.agent")

    def body() -> None:
        wait_until(lambda: "recovery ended: no release is pending" in caplog.text)

    assert node.serve(body) == 0
    assert node.rows() == []


def test_lost_allocations_are_claimed_again(
    node: ResidentNode, pod: Netns, tmp_path: Path, frequent: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is replaced by a backup that does not contain them. An ADD receives none of these addresses."""
    cli = Cli(tmp_path, fresh=False)
    assert cli.changes("store", "backup", str(tmp_path / "copy")) == f"{tmp_path / 'copy'} written\n"
    made: list[Any] = []
    with Netns("other") as other:
        assert node.serve(lambda: made.append(node.call("ADD", pod, args=WEB, ipam=DUAL))) == 0
        assert cli.changes("store", "restore", str(tmp_path / "copy")).startswith(f"restored from {tmp_path / 'copy'}\n")
        caplog.set_level("INFO", "svc.agent")

        def body() -> None:
            second = node.call("ADD", other, container="c2", ipam=DUAL)
            assert not {ip["address"] for ip in second["ips"]} & {ip["address"] for ip in made[0]["ips"]}
            wait_until(lambda: "again for net.c1" in caplog.text)
            assert node.call("DEL", other, container="c2") is None
            assert node.call("CHECK", pod, args=WEB, prevResult=made[0]) is None

        assert node.serve(body) == 0
    with closing(node.store()) as store:
        assert len(store.list(ResourceQuery(KIND))) == 1


def test_lost_rows_are_restored(node: ResidentNode, pod: Netns, tmp_path: Path, frequent: None) -> None:
    """Another program removed the rows while the agent ran."""
    install(node, tmp_path)

    def body() -> None:
        assert "ips" in node.call("ADD", pod, args=WEB, ipam=DUAL)
        (row,) = node.rows()
        with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
            journal.execute("DELETE FROM attachments")
            journal.commit()
        wait_until(lambda: [each.addresses for each in node.rows()] == [row.addresses])
        assert node.call("DEL", pod, args=WEB) is None

    assert node.serve(body) == 0
    assert node.rows() == []


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "unknown"])
def test_lost_rows_of_host_local_are_restored(
    node: ResidentNode, pod: Netns, tmp_path: Path, frequent: None, installed: bool
) -> None:
    """The agent finds the network in the files of host-local. It knows only installed networks; a call knows its own."""
    require_plugin("host-local")
    node.config["ipam"] = LOCAL | {"dataDir": str(tmp_path / "networks"), "routes": [{"dst": "10.0.0.0/8"}]}
    if installed:
        install(node, tmp_path)

    def body() -> None:
        result = node.call("ADD", pod, args=WEB)
        with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
            journal.execute("DELETE FROM attachments")
            journal.commit()
        if installed:
            wait_until(lambda: len(node.rows()) == 1)
        assert node.call("ADD", pod, args=WEB) == result
        assert node.call("CHECK", pod, args=WEB, prevResult=result) is None
        assert node.call("DEL", pod, args=WEB) is None

    assert node.serve(body) == 0
    assert sorted(path.name for path in (tmp_path / "networks" / "net").glob("10.*")) == []


def test_changed_package_is_reported(
    node: ResidentNode, tmp_path: Path, frequent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STATUS warns that the agent must be restarted, and the metrics count it."""
    port = free_port()
    (tmp_path / "package").write_text("another one")

    def body() -> None:
        assert node.call("STATUS") is None
        monkeypatch.setattr(svc, "__file__", str(tmp_path / "package"))
        wait_until(lambda: "svc_package_changes_total 1" in metrics(port))
        assert node.call("STATUS") is None

    assert node.serve(body, metrics=("127.0.0.1", port)) == 0
    assert "has been installed since: restart svc-agent" in (tmp_path / "log").read_text()


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        return str(reply.read(), "utf-8")


def test_removed_socket_is_bound_again(node: ResidentNode, frequent: None, caplog: pytest.LogCaptureFixture) -> None:
    """A directory in its place is reported once. Without its state directory the agent ends."""

    def is_socket() -> bool:
        return node.socket.exists() and stat.S_ISSOCK(node.socket.stat().st_mode)

    def body() -> None:
        node.socket.unlink()
        wait_until(is_socket)
        assert node.call("STATUS") is None
        node.socket.unlink()
        node.socket.mkdir()
        wait_until(lambda: "is a directory, and no call reaches the agent" in caplog.text)
        node.socket.rmdir()
        wait_until(is_socket)
        os.rename(node.state_dir, node.state_dir.with_name("moved"))
        wait_until(lambda: "start the agent again" in caplog.text)

    assert node.serve(body) == 1
    shutil.rmtree(node.run_dir)


def test_parked_add_ends_with_its_del_and_moves_on_when_the_agent_stops(
    node: ResidentNode, netns: Netns, pod: Netns, gate: GateServer
) -> None:
    gated: dict[str, Any] = {"readiness_gates": [gate.url], "readiness_gates_timeout_seconds": 60}
    ended: list[Any] = []
    with ThreadPoolExecutor() as pool, Netns("other") as other:

        def begin(sandbox: Netns, container: str) -> Any:
            rows = len(node.rows())
            future = pool.submit(node.call, "ADD", sandbox, container=container, **gated)
            wait_until(lambda: len(node.rows()) > rows)
            return future

        def body() -> None:
            first = begin(pod, "c1")
            assert node.call("DEL", pod) is None
            assert "its DEL has come" in first.result()["msg"]
            ended.append(begin(other, "c2"))

        assert node.serve(body) == 0
        with pytest.raises(Handover):
            ended[0].result()
        assert [row.id.container_id for row in node.rows()] == ["c2"]
        gate.behaviour = status(200)
        assert node.serve(lambda: node.call("DEL", other, container="c2")) == 0
    assert node.rows() == []
    assert own_links(netns) == []


def test_pod_waits_for_its_policy(node: ResidentNode, pod: Netns, tmp_path: Path) -> None:
    """Its file appears during the first wait. The second wait ends at the deadline, with a warning in the log."""
    waits: dict[str, Any] = {"policy_setup_timeout_seconds": 1, "endpoint_status_dir": str(tmp_path / "status")}
    (tmp_path / "status").mkdir()

    def body() -> None:
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(node.call, "ADD", pod, args=WEB, **waits)
            wait_until(lambda: [row.state for row in node.rows()] == ["added"])
            (tmp_path / "status" / "k8s default%2Fweb-0 eth0").write_text("")
            assert "ips" in adding.result()

    assert node.serve(body) == 0
    assert "starts without" not in (tmp_path / "log").read_text()
