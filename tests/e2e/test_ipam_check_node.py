"""svcctl ipam check --node on a node with an agent: each finding, and none without a cause."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.enter_netns import entered
from harness.ipam_check import at_once
from harness.netns import run
from harness.node import Node, netconf
from harness.pod import Pod
from harness.state import audit, disagreements, edit_journal, remains, store_of
from harness.stopped import stopped
from svc._core.cidr import Address
from svc.admin.ipam_check.findings import AGENT, KINDS, Finding
from svc.admin.ipam_check.node import NodePlace, check_node
from svc.admin.ipam_check.observation import Place
from svc.attach.journal import Journal
from svc.attach.record import ADDING, DELETING, Record
from svc.ipam.requests import Assign, ReleaseTarget
from svc.ipam.service import IpamService
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
WEB = "K8S_POD_NAME=web;K8S_POD_NAMESPACE=default"
HOST = os.uname().nodename.lower()


def look(node: Node) -> tuple[Finding, ...]:
    """Return the findings of two observations, the second one at once."""
    with store_of(node) as store, entered(node.netns):
        place = NodePlace(Place(store, DEFAULT), {"kind": "embedded"}, HOST, node.state_dir)
        return check_node(place, at_once).findings


def found(node: Node) -> list[tuple[str, str]]:
    return [(finding.id, finding.object) for finding in look(node)]


def svcctl(node: Node, *arguments: str) -> str:
    """Run svcctl in the node's network namespace, and return its output."""
    command = [str(node.programs / "svcctl"), "--state-dir", str(node.state_dir), *arguments]
    with entered(node.netns):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def name(pod: Pod) -> str:
    return f"net {pod.container} {pod.ifname}"


def row(node: Node) -> Record:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        (record,) = journal.all()
        return record


def remove_rows(node: Node) -> None:
    with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()


def test_findings_of_nodes_are_known() -> None:
    assert [id_ for id_, kind in KINDS.items() if kind.source == AGENT] == [
        "attachment-unallocated", "allocation-unattached", "link-unknown", "link-missing", "attachment-unfinished",
    ]  # fmt: skip


@pytest.mark.parametrize("plugin", ["svc", "svc-ipam"])
def test_attached_pods_have_no_findings(own_pods: MakePod, node: Node, plugin: str) -> None:
    """Neither has an attachment below another main plugin, which has no interface of svc."""
    pods = [own_pods(plugin=plugin, args=WEB), own_pods(plugin=plugin)]
    for pod in pods:
        pod.add()
    assert found(node) == []
    (document,) = json.loads(svcctl(node, "ipam", "check", "--node", "-o", "json"))
    assert document["findings"] == []
    assert document["summary"]["attachments"] == 2
    for pod in pods:
        pod.delete()
    assert found(node) == []
    assert remains(node) == []


def test_attachment_without_its_address_is_found(own_pods: MakePod, node: Node) -> None:
    """Its address is free, or has been assigned to another container."""
    pod = own_pods(args=WEB)
    pod.add()
    node.stop_agent()  # it would claim the address again
    (text,) = pod.addresses
    with store_of(node) as store:
        ipam = IpamService(store, HOST)
        ipam.release_addresses([ReleaseTarget(Address(text))])
        (finding,) = look(node)
        assert (finding.id, finding.object, finding.addresses) == ("attachment-unallocated", name(pod), (text,))
        assert finding.problem == f"{text} is not allocated (pod default/web)"
        ipam.assign(Assign("net.other", {"node": "node9"}, addresses=(Address(text),)))
    (finding,) = look(node)
    assert finding.problem == f"{text} is allocated to net.other (pod default/web)"
    node.start_agent()


def test_allocation_without_an_attachment_is_found(own_pods: MakePod, node: Node) -> None:
    """Allocations of other nodes, of tunnels and of addresses on an interface are not."""
    with store_of(node) as store:
        ipam = IpamService(store, HOST)
        (lost,) = ipam.assign(Assign("net.lost", {"node": HOST, "pod": "web", "namespace": "default"})).addresses
        (live,) = ipam.assign(Assign("net.live", {"node": HOST})).addresses
        ipam.assign(Assign("net.far", {"node": "node9"}))
        ipam.assign(Assign("tunnel", {"node": HOST, "type": "vxlanTunnelAddress"}))
    run("ip", "-n", node.netns.name, "route", "add", f"{live}/32", "dev", "uplink")
    (finding,) = look(node)
    assert (finding.id, finding.object, finding.node) == ("allocation-unattached", str(lost), HOST)
    assert "net.lost for pod default/web" in finding.problem


def test_interface_without_a_row_is_found(own_pods: MakePod, node: Node) -> None:
    """Its address is that of a live interface, so its allocation is not named."""
    pod = own_pods()
    pod.add()
    node.stop_agent()  # it would restore the row
    remove_rows(node)
    assert found(node) == [("link-unknown", pod.host_name)]
    node.start_agent()


def test_attachment_without_its_interface_is_found(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(args=WEB)
    pod.add()
    node.netns.ip("link", "delete", pod.host_name)
    (finding,) = look(node)
    assert (finding.id, finding.object) == ("link-missing", name(pod))
    assert finding.problem == f"interface {pod.host_name} does not exist (pod default/web)"
    pod.delete()
    assert found(node) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"state": DELETING}, "its release is pending"),
        ({"state": ADDING}, "its ADD has not ended"),
        ({"boot_id": "other"}, "it was added before the node was started"),
    ],
)
def test_attachment_that_is_not_complete_is_found(own_pods: MakePod, node: Node, fields: dict[str, str], problem: str) -> None:
    pod = own_pods()
    pod.add()
    node.stop_agent()
    record = row(node)
    for field, value in fields.items():
        setattr(record, field, value)
    edit_journal(node, record)
    findings = [finding for finding in look(node) if finding.id == "attachment-unfinished"]
    assert [(finding.object, finding.problem) for finding in findings] == [(name(pod), problem)]
    node.start_agent()


def test_rows_that_change_between_the_observations_are_no_finding(own_pods: MakePod, node: Node) -> None:
    """An ADD in flight has written its row, and neither its address nor its interface yet."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    record = row(node)
    record.state = ADDING
    edit_journal(node, record)

    def complete(_seconds: float, counts: object) -> bool:
        assert counts == {"attachment-unfinished": 1}
        record.state = "added"
        edit_journal(node, record)
        return True

    with store_of(node) as store, entered(node.netns):
        place = NodePlace(Place(store, DEFAULT), {"kind": "embedded"}, HOST, node.state_dir)
        assert check_node(place, complete).findings == ()
    node.start_agent()


def test_agent_in_another_network_namespace_is_an_error(node: Node) -> None:
    """Its interfaces are not visible, so nothing is known about its addresses."""
    for arguments in (("check", "--node"), ("release", "--ip", "10.65.0.1")):
        failed = node.svcctl("ipam", *arguments, check=False)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert f"run this there: nsenter -t {node.agent_pid} -n" in failed.stderr


def test_node_without_an_agent_is_an_error(node: Node, own_pods: MakePod) -> None:
    """Neither findings nor their absence are known."""
    node.stop_agent()
    for path in node.state_dir.glob("journal.db*"):
        path.unlink()
    failed = node.svcctl("ipam", "check", "--node", check=False)
    assert (failed.returncode, "journal" in failed.stderr, failed.stdout) == (1, True, "")
    both = node.svcctl("ipam", "check", "--node", "--report", "/tmp/report", check=False)
    assert (both.returncode, "--node and --report exclude each other" in both.stderr) == (2, True)
    node.start_agent()
    assert audit(node).entries() == []


def test_name_of_the_node_is_that_of_its_attachments(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    """The command knows no network configuration, or one with another name."""
    pods = [own_pods(args=WEB), own_pods()]
    for pod in pods:
        pod.add(nodename="node1")
    (document,) = json.loads(svcctl(node, "--embedded", "ipam", "check", "--node", "-o", "json"))
    assert {field: document["summary"][field] for field in ("node", "attachments", "allocations", "findings")} == {
        "node": "node1", "attachments": 2, "allocations": 2, "findings": 0,
    }  # fmt: skip
    file = tmp_path / "netconf.json"
    file.write_text(json.dumps(netconf(nodename="node2")))
    with entered(node.netns):
        failed = node.svcctl("--netconf", str(file), "ipam", "check", "--node", check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "the journal has node1; the network configuration: node2" in failed.stderr
    for pod in pods:
        pod.delete(nodename="node1")
    (document,) = json.loads(svcctl(node, "--embedded", "ipam", "check", "--node", "-o", "json"))
    assert document["summary"]["node"] == "node1"  # the agent still knows it


def test_stopped_agent_causes_a_warning(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    command = [str(node.programs / "svcctl"), "--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir)]
    with stopped(node.agent_pid), entered(node.netns):
        done = subprocess.run([*command, "ipam", "check", "--node"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("0 findings on node ")) == (0, True)
    assert "warning: the agent does not answer" in done.stderr
    assert "its journal is read" in done.stderr


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database, and it is longer than a header of one would be" * 20)


def undecodable_row(path: Path) -> None:
    with closing(sqlite3.connect(path)) as journal, journal:
        journal.execute("UPDATE attachments SET record = 'not JSON'")


@pytest.mark.parametrize(
    ("damage", "problem", "fix"),
    [
        (garbage, "file is not a database", "it rebuilds the journal"),
        (undecodable_row, "1 rows that cannot be read", "next call of the network"),
    ],
)
@pytest.mark.parametrize("command", [("check", "--node"), ("release", "--ip", "ADDRESS")], ids=" ".join)
def test_damaged_journal_is_an_error_and_stays(
    own_pods: MakePod, node: Node, damage: Callable[[Path], None], problem: str, fix: str, command: tuple[str, ...]
) -> None:
    """Nothing is judged without the rows. The agent mends the journal."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    journal = node.state_dir / "journal.db"
    damage(journal)
    before = journal.read_bytes()
    arguments = [part.replace("ADDRESS", pod.addresses[0]) for part in command]
    line = [str(node.programs / "svcctl"), "--state-dir", str(node.state_dir), "ipam", *arguments]
    with entered(node.netns):
        answer = subprocess.run(line, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert problem in answer.stderr
    assert fix in answer.stderr
    assert journal.read_bytes() == before
    assert not list(node.state_dir.glob("journal.db.damaged-*"))
    node.start_agent()
    assert pod.check().status == 0
    assert disagreements(node) == []
    pod.delete()
    assert remains(node) == []
