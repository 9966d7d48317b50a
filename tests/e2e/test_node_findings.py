"""Reconciliation by a real agent: findings in metrics, log, `svcctl reconcile` and `svcctl status`, and dead attachments."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.enter_netns import entered
from harness.ipam_check import at_once
from harness.netns import Netns
from harness.node import Node, agent_with, netconf
from harness.pod import Pod
from harness.polling import wait_until
from harness.scrape import path_of, restart, scrape
from harness.state import edit_journal, given_away, remains, store_of
from svc.admin.ipam_check.node import NodePlace, check_node
from svc.admin.ipam_check.observation import Place
from svc.agent import reconciliation, restoring
from svc.attach.journal import Journal
from svc.attach.record import DELETING
from svc.dataplane.plan import HOST_MAC
from svc.ipam.requests import Assign, ReleaseTarget
from svc.ipam.service import IpamService
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
HOST = os.uname().nodename.lower()
IDS = ("attachment-unallocated", "allocation-unattached", "link-unknown", "link-missing", "attachment-unfinished")
MODULE = reconciliation.__name__
QUICK = agent_with({f"{MODULE}.CONFIRM_SECONDS": 1.0, f"{MODULE}.RECONCILE_SECONDS": 1.0, f"{MODULE}.LOOK_SECONDS": 0.1})


@pytest.fixture
def observed(node: Node, own_pods: MakePod) -> Pod:
    """Return a pod on a node whose agent observes every second, and has found nothing."""
    restart(node, *QUICK)
    pod = own_pods()
    pod.add()
    wait_until(lambda: found(node) == dict.fromkeys(IDS, 0))
    return pod


def found(node: Node) -> dict[str, float]:
    """Return the number of findings by ID; nothing before the first observation."""
    values = {name.partition("{")[2][4:-2]: value for name, value in scrape(node).items() if name.startswith("reconcile_")}
    assert set(values) <= set(IDS)
    return values


def seen(node: Node, name: str) -> None:
    """Wait until the metrics have this finding alone."""
    wait_until(lambda: found(node) == dict.fromkeys(IDS, 0) | {name: 1})


def mended(node: Node, name: str, subject: str) -> None:
    def lines() -> list[str]:
        return [line for line in node.log.read_text().splitlines() if f"{name}: " in line]

    wait_until(lambda: found(node) == dict.fromkeys(IDS, 0))
    wait_until(lambda: len(lines()) == 2)  # the agent logs after it has changed the metrics
    begun, ended = lines()
    assert "WARNING" in begun
    assert f"{name}: {subject}: " in begun
    assert ended.endswith(f"{name}: {subject}: no longer found")


def named(pod: Pod) -> str:
    return f"net {pod.container} {pod.ifname}"


def test_missing_interface_is_found(observed: Pod) -> None:
    observed.node.netns.ip("link", "delete", observed.host_name)
    seen(observed.node, "link-missing")
    observed.delete()
    mended(observed.node, "link-missing", named(observed))


def test_unknown_interface_is_found(observed: Pod) -> None:
    ip = observed.node.netns.ip
    ip("link", "add", "svcghost", "address", HOST_MAC.hex(":"), "type", "veth", "peer", "name", "ghost")
    seen(observed.node, "link-unknown")
    ip("link", "delete", "svcghost")
    mended(observed.node, "link-unknown", "svcghost")


def test_allocation_that_no_attachment_has_is_found(observed: Pod) -> None:
    """An allocation of another node is not reported, in any block."""
    with store_of(observed.node) as store:
        ipam = IpamService(store, HOST)
        (lost,) = ipam.assign(Assign("net.lost", {"node": HOST})).addresses
        ipam.assign(Assign("net.far", {"node": "node9"}))
        seen(observed.node, "allocation-unattached")
        ipam.release_addresses([ReleaseTarget(lost)])
    mended(observed.node, "allocation-unattached", str(lost))


@pytest.fixture
def beside(observed: Pod, tmp_path: Path) -> Iterator[Node]:
    """Return another node in the same network namespace, with an agent that observes every second."""
    other = Node(tmp_path / "beside", agent=False)
    own, other.netns = other.netns, observed.node.netns
    try:
        other.apply_pool("beside", "10.77.0.0/24")
        other.start_agent(*QUICK, options=("--metrics", f"unix:{path_of(other)}"))
        yield other
    finally:
        if other.has_agent:
            other.stop_agent()
        other.netns = own
        other.close()


def test_interfaces_of_another_agent_are_known(observed: Pod, beside: Node, sandbox: Callable[[], Netns]) -> None:
    """Neither agent finds those of the other one, until that does not run."""
    pod = Pod(beside, sandbox(), "beside", netconf(), "eth0", "", "svc")
    pod.add()
    for node in (observed.node, beside):
        wait_until(partial(_is_clean, node))
        rounds = compared(node), compared(node)
        assert [status for status, _ in rounds] == [0, 0]
    assert [report["unconfirmed"] for _, report in rounds] == [{}, {}]
    beside.stop_agent()
    seen(observed.node, "link-unknown")
    beside.start_agent()
    wait_until(partial(_is_clean, observed.node))
    pod.delete()


def _is_clean(node: Node) -> bool:
    return found(node) == dict.fromkeys(IDS, 0)


def test_attachment_without_its_address_is_found(observed: Pod) -> None:
    """Another container has got it, so that the agent cannot claim it again."""
    (text,) = observed.addresses
    with given_away(observed.node, text):
        seen(observed.node, "attachment-unallocated")
        observed.delete()
        mended(observed.node, "attachment-unallocated", named(observed))


def test_pending_release_is_found(observed: Pod) -> None:
    journal = Journal(observed.node.state_dir / "journal.db")
    (record,) = journal.all()
    journal.close()
    record.state = DELETING
    edit_journal(observed.node, record)
    seen(observed.node, "attachment-unfinished")
    observed.delete()
    mended(observed.node, "attachment-unfinished", named(observed))


def test_calls_in_flight_are_no_findings(observed: Pod, own_pods: MakePod) -> None:
    for _ in range(40):
        pod = own_pods()
        pod.add()
        pod.delete()
    assert found(observed.node) == dict.fromkeys(IDS, 0)
    assert "no longer found" not in observed.node.log.read_text()


def compared(node: Node) -> tuple[int, Any]:
    done = node.svcctl("reconcile", "-o", "json", check=False)
    (report,) = json.loads(done.stdout)
    return done.returncode, report


def test_attachment_without_a_sandbox_is_torn_down(observed: Pod) -> None:
    """No DEL comes: the machine that ran the container's shim was reset, for example. A late DEL succeeds."""
    observed.netns.delete()
    wait_until(lambda: remains(observed.node) == [])
    wait_until(lambda: compared(observed.node)[1]["torn_down"] == 1)
    assert compared(observed.node)[1]["findings"] == []
    observed.delete()


def test_findings_are_shown_on_request(observed: Pod) -> None:
    """`svcctl reconcile` compares now. `svcctl status` shows what it found."""
    assert compared(observed.node)[0] == 0
    observed.node.netns.ip("link", "delete", observed.host_name)
    seen(observed.node, "link-missing")
    exit_status, report = compared(observed.node)
    assert exit_status == 3
    assert [(each["id"], each["object"]) for each in report["findings"]] == [("link-missing", named(observed))]
    shown = observed.node.svcctl("reconcile", check=False)
    assert shown.returncode == 3
    assert f"recreate the workload of {named(observed)}" in shown.stdout
    status = observed.node.svcctl("status", check=False)
    assert status.returncode == 3
    assert f"link-missing: {named(observed)}" in status.stdout
    assert "1 findings in 1 attachments" in status.stdout


def test_conflict_is_shown_before_the_next_comparison(node: Node, own_pods: MakePod) -> None:
    """The agent meets it when it claims the address again, and compares every 5 minutes only."""
    restart(node, *agent_with({f"{restoring.__name__}.{name}_SECONDS": 0.1 for name in ("VERIFY", "CONFLICT", "LOOK")}))
    pod = own_pods()
    pod.add()
    (address,) = pod.addresses
    with given_away(node, address):
        wait_until(lambda: found(node).get("attachment-unallocated") == 1)
        status = node.svcctl("status", check=False)
        assert status.returncode == 3
        assert f"attachment-unallocated: {named(pod)}: another has its address: " in " ".join(status.stdout.split())
        assert address.partition("/")[0] in status.stdout
    wait_until(lambda: found(node) == dict.fromkeys(IDS, 0))
    assert "attachment-unallocated" not in node.svcctl("status", check=False).stdout


@pytest.mark.parametrize("is_damaged", [False, True], ids=["lost", "damaged"])
def test_lost_journal_is_named_with_its_findings(observed: Pod, is_damaged: bool) -> None:
    """No network list is installed, so that nothing names the network. The agent and the check of the node agree."""
    node = observed.node
    node.stop_agent()
    for file in node.state_dir.glob("journal.db*"):
        file.unlink()
    if is_damaged:
        (node.state_dir / "journal.db").write_bytes(b"damaged" * 1000)
    node.start_agent(*QUICK, options=("--metrics", f"unix:{path_of(node)}"))
    wait_until(lambda: node.svcctl("reconcile", check=False).returncode == 3)
    _, report = compared(node)
    assert [each["id"] for each in report["findings"]] == ["link-unknown"]
    assert "no installed network list names a datastore" in report["errors"][0]
    origin = "rebuilt at " if is_damaged else "made at "
    assert report["journal"].startswith(origin)
    with store_of(node) as store, entered(node.netns):
        checked = check_node(NodePlace(Place(store, DEFAULT), {"kind": "embedded"}, HOST, node.state_dir), at_once)
    expected = [(each["id"], each["object"], each["problem"]) for each in report["findings"]]
    assert [(each.id, each.object, each.problem) for each in checked.findings] == expected
    assert checked.observation.journal == report["journal"]
    shown = " ".join(node.svcctl("status", check=False).stdout.split())
    assert f"the agent's journal, which was {origin}" in shown
    assert ("kept as journal.db.damaged-" in shown) is is_damaged
    observed.delete()


def test_locked_datastore_leaves_findings_unknown(observed: Pod) -> None:
    node = observed.node
    node.svcctl("clusterinfo", "lock")
    assert compared(node)[0] == 1
    shown = " ".join(node.svcctl("status", check=False).stdout.split())
    assert "findings: unknown, incomplete (" in shown
    assert "last complete comparison: 0 findings " in shown
    node.svcctl("clusterinfo", "unlock")
    assert compared(node)[0] == 0
    observed.delete()


def test_reconcile_needs_the_agent(observed: Pod) -> None:
    """Without one, `svcctl ipam check --node` compares."""
    observed.node.stop_agent()
    done = observed.node.svcctl("reconcile", check=False)
    assert done.returncode == 1
    assert "the agent does not run" in done.stderr
