"""Reconciliation by the agent: dead attachments are torn down, and everything else is named and left alone."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness.add_requests import netconf
from harness.blocking import run_blocking
from harness.fault_injection import Kind
from harness.inprocess import WHERE, Host, opened
from harness.ipam import IPAM_QUERIES, free, wipe
from harness.netns import Netns, run
from harness.polling import TIMEOUT_SECONDS, wait_until
from svc.agent import node_observation, reconciliation
from svc.agent.lanes import RECOVERY
from svc.agent.queue import Job
from svc.agent.reconciliation import CONFIRM_SECONDS, RECONCILE_SECONDS, Reconciliation
from svc.attach.add import add
from svc.attach.reclaim import restore
from svc.attach.record import DELETING, AttachmentId
from svc.attach.request import AddRequest, Sandbox
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.endpoint import Workload
from svc.model.errors import SvcError

pytestmark = pytest.mark.root


LoseSandbox = Callable[[str], None]


class Clock:
    """The time that the reconciliation reads."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1_790_000_000 + self.seconds


class Looks:
    """Comparisons whose jobs the test runs."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self.jobs: list[Job] = []
        self.clock = clock
        self.reconciliation = Reconciliation(host.context, self.jobs.append, host.directory)

    def __call__(self, seconds: float = 0.0) -> dict[str, Any]:
        """Compare after this time, run all jobs, and return the report."""
        self.clock.seconds += seconds
        report = self.reconciliation.reconcile()
        self.run_jobs()
        return report

    def run_jobs(self) -> None:
        while self.jobs:
            job = self.jobs.pop(0)
            job.run(job)

    def twice(self) -> list[tuple[str, str]]:
        """Compare twice, far enough apart, and return ID and object of each finding."""
        self()
        return sorted((each["id"], each["object"]) for each in self(CONFIRM_SECONDS)["findings"])


@pytest.fixture
def look(host: Host, monkeypatch: pytest.MonkeyPatch) -> Looks:
    clock = Clock()
    monkeypatch.setattr(reconciliation, "time", clock)
    return Looks(host, clock)


@pytest.fixture
def lost_sandbox(host: Host) -> LoseSandbox:
    """Return a function that attaches a container and removes its sandbox, so that the kernel removes its interface."""

    def attach_and_remove(container: str) -> None:
        before = host.links()
        with Netns("lost") as namespace, opened(namespace) as sandbox:
            host.add(sandbox, container=container)
        wait_until(lambda: host.links() == before)

    return attach_and_remove


def test_attachment_without_sandbox_is_torn_down(
    host: Host, look: Looks, lost_sandbox: LoseSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """It is observed twice, a minute apart. A DEL that comes later finds nothing, and succeeds."""
    lost_sandbox("c1")
    assert look()["gone"] == 1
    assert look(CONFIRM_SECONDS - 1)["gone"] == 1
    assert host.left_over() != []
    assert look(1)["gone"] == 1
    assert host.left_over() == []
    assert "taking down c1 eth0 of net: its interface and its sandbox do not exist any more" in caplog.text
    report = look(CONFIRM_SECONDS)
    assert (report["gone"], report["torn_down"], report["findings"]) == (0, 1, [])
    host.delete(None)


def test_attachment_in_a_living_sandbox_stays(host: Host, look: Looks, sandbox: Sandbox, pod: Netns) -> None:
    """Only its interface was deleted: its container may run. The finding names the attachment."""
    host.add(sandbox)
    pod.run("ip", "link", "delete", "eth0")
    before = host.left_over()
    assert look.twice() == [("link-missing", "net c1 eth0")]
    assert look(CONFIRM_SECONDS)["findings"][0]["since"] == "2026-09-21T14:30:00Z"
    assert host.left_over() == before


def test_interface_that_left_its_sandbox_stays(host: Host, look: Looks, pod: Netns) -> None:
    """Its sandbox is gone, but its address may be in use in another namespace."""
    with Netns("lost") as namespace:
        with opened(namespace) as sandbox:
            host.add(sandbox)
        run("ip", "-n", namespace.name, "link", "set", "eth0", "netns", pod.name)
    before = host.left_over()
    assert look.twice() == []
    assert look(CONFIRM_SECONDS)["gone"] == 0
    assert host.left_over() == before


def test_interface_with_another_hardware_address_stays(host: Host, look: Looks, pod: Netns) -> None:
    """It does not look like one of svc any more. The teardown asks for its index."""
    with Netns("lost") as namespace:
        with opened(namespace) as sandbox:
            host.add(sandbox)
        run("ip", "-n", namespace.name, "link", "set", "eth0", "netns", pod.name)
    (name,) = host.links()
    run("ip", "link", "set", name, "address", "02:00:00:00:00:01")
    before = host.left_over()
    look()
    assert look(CONFIRM_SECONDS)["gone"] == 1
    assert host.left_over() == before


def test_attachment_that_was_added_again_stays(host: Host, look: Looks, lost_sandbox: LoseSandbox, sandbox: Sandbox) -> None:
    """The runtime has started the container again, between the observations or before the teardown."""
    lost_sandbox("c1")
    look()
    host.add(sandbox)
    assert look(CONFIRM_SECONDS)["gone"] == 0
    lost_sandbox("c2")
    look()
    look.clock.seconds += CONFIRM_SECONDS
    look.reconciliation.reconcile()
    with Netns("again") as namespace, opened(namespace) as again:
        host.add(again, container="c2")
        before = host.left_over()
        look.run_jobs()
        assert host.left_over() == before


def test_addresses_without_an_interface_of_svc_stay(host: Host, look: Looks) -> None:
    """In the IPAM role another plugin makes the interface, and no sandbox is recorded."""
    host.add(None)
    before = host.left_over()
    assert look.twice() == []
    assert look(CONFIRM_SECONDS)["gone"] == 0
    assert host.left_over() == before


@pytest.mark.parametrize("path", ["", "/dev/null"])
def test_other_file_at_the_path_is_no_sign_of_life(
    host: Host, look: Looks, lost_sandbox: LoseSandbox, sandbox: Sandbox, path: str
) -> None:
    """The path of the sandbox leads to another one, or to another file. Without a path nothing is known."""
    lost_sandbox("c1")
    host.add(sandbox, container="c2")
    dead, other = sorted(host.context.journal.all(), key=lambda record: record.id.container_id)
    assert dead.result is not None
    assert other.result is not None
    dead.result["interfaces"][1]["sandbox"] = path or other.result["interfaces"][1]["sandbox"]
    host.context.journal.update(dead)
    look()
    look(CONFIRM_SECONDS)
    assert [record.id.container_id for record in host.context.journal.all()] == ["c2"]
    assert host.audit().disagreements(host.links()) == []


def test_attachment_without_a_path_stays(host: Host, look: Looks, lost_sandbox: LoseSandbox) -> None:
    """It is not known whether its sandbox exists."""
    lost_sandbox("c1")
    (dead,) = host.context.journal.all()
    dead.result = None
    host.context.journal.update(dead)
    assert look.twice() == [("link-missing", "net c1 eth0")]
    assert len(host.context.journal.all()) == 1


def test_both_networks_of_a_shared_interface_are_torn_down(host: Host, look: Looks, pod: Netns) -> None:
    """The second one has neither an interface nor addresses of its own."""
    with Netns("lost") as namespace, opened(namespace) as sandbox:
        host.add(sandbox)
        request = AddRequest(AttachmentId("other", "c1", "eth0"), Workload("c1"), sandbox, WHERE, netconf((4, 6)))
        run_blocking(add(host.context, request, host.trace))
    wait_until(lambda: not host.links())
    look()
    assert look(CONFIRM_SECONDS)["gone"] == 2
    assert host.left_over() == []


def test_failed_teardown_is_a_pending_release(host: Host, look: Looks, lost_sandbox: LoseSandbox) -> None:
    """The agent retries it. The address stays allocated until then."""
    lost_sandbox("c1")
    look()
    look.clock.seconds += CONFIRM_SECONDS
    look.reconciliation.reconcile()
    host.faults.arm(Kind.OUTAGE)
    look.run_jobs()
    host.heal()
    assert [record.state for record in host.context.journal.all()] == [DELETING]
    assert host.left_over() != []
    assert look.twice() == [("attachment-unfinished", "net c1 eth0")]


def test_datastore_that_fails_is_asked_once(host: Host, look: Looks, lost_sandbox: LoseSandbox) -> None:
    """All dead attachments become pending releases. Their teardowns have the limit of a recovery."""
    for container in ("c1", "c2", "c3"):
        lost_sandbox(container)
    look()
    look.clock.seconds += CONFIRM_SECONDS
    look.reconciliation.reconcile()
    assert {job.lane.name for job in look.jobs} == {RECOVERY}
    host.faults.arm(Kind.OUTAGE)
    look.jobs.pop(0).run(look.jobs[0])
    host.faults.arm(Kind.OUTAGE)
    look.run_jobs()
    assert not host.faults.struck
    host.heal()
    assert [record.state for record in host.context.journal.all()] == [DELETING] * 3


@pytest.mark.parametrize("part", ["kernel_uses", "_held", "_unchanged", "contradictions", "dead_attachments"])
def test_no_call_waits_for_a_comparison(
    host: Host, look: Looks, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The comparison stands still in one of its parts until the calls have ended."""
    host.add(sandbox)
    original = getattr(node_observation, part)
    entered, ended = threading.Event(), threading.Event()

    def standing(*arguments: Any) -> Any:
        entered.set()
        assert ended.wait(TIMEOUT_SECONDS)
        return original(*arguments)

    monkeypatch.setattr(node_observation, part, standing)
    comparison = threading.Thread(target=look)
    comparison.start()
    try:
        assert entered.wait(TIMEOUT_SECONDS)
        began = time.monotonic()
        host.delete(sandbox)
        host.add(sandbox)
        assert time.monotonic() - began < TIMEOUT_SECONDS / 2
        assert comparison.is_alive()
    finally:
        ended.set()
        comparison.join()
    assert look.twice() == []


def test_unknown_interfaces_and_allocations_are_named(host: Host, look: Looks, sandbox: Sandbox) -> None:
    """They stay as they are: another program may use them."""
    host.add(sandbox)
    host.context.session(WHERE).ipam.assign(Assign("net.gone", {"node": "node1"}, versions=(4,)))
    run("ip", "link", "add", "svcunknown", "address", "ee:ee:ee:ee:ee:ee", "type", "veth", "peer", "name", "other")
    before = host.left_over()
    assert look()["findings"] == []
    report = look(CONFIRM_SECONDS)
    assert {each["id"]: each["object"] for each in report["findings"]}.keys() == {"allocation-unattached", "link-unknown"}
    assert all(each["fix"] and each["since"] for each in report["findings"])
    assert host.left_over() == before
    counted = {dict(labels)["id"]: number for _, labels, number in look.reconciliation.samples()}
    assert counted["link-unknown"] == counted["allocation-unattached"] == 1
    assert counted["link-missing"] == counted["attachment-unfinished"] == counted["attachment-unallocated"] == 0
    run("ip", "link", "delete", "svcunknown")
    assert [each["id"] for each in look()["findings"]] == ["allocation-unattached"]


def test_lost_allocations_are_named(host: Host, look: Looks, sandbox: Sandbox) -> None:
    """The agent claims them again by another job."""
    host.add(sandbox)
    wipe(host.store, *IPAM_QUERIES)
    assert look.twice() == [("attachment-unallocated", "net c1 eth0")] * 2


def test_datastore_that_fails_is_left_out(host: Host, look: Looks, sandbox: Sandbox, pod: Netns) -> None:
    """Journal and kernel are still compared, and nothing is said about allocations."""
    host.add(sandbox)
    pod.run("ip", "link", "delete", "eth0")
    host.faults.arm(Kind.OUTAGE)
    look()
    report = look(CONFIRM_SECONDS)
    assert [each["id"] for each in report["findings"]] == ["link-missing"]
    assert len(report["errors"]) == 1


def test_findings_of_a_datastore_stay_while_it_fails(host: Host, look: Looks, sandbox: Sandbox) -> None:
    """They are not known to be mended. The report has the time of the last complete comparison."""
    host.add(sandbox)
    IpamService(host.store, "node1").assign(Assign("net.lost", {"node": "node1"}))
    assert [id_ for id_, _ in look.twice()] == ["allocation-unattached"]
    before = look.reconciliation.report
    assert before["complete"] == {"time": before["time"], "findings": 1}
    host.faults.arm(Kind.OUTAGE)
    report = look(CONFIRM_SECONDS)
    assert report["findings"] == before["findings"]
    assert report["complete"] == before["complete"]
    host.heal()
    free(IpamService(host.store, "node1"), "net.lost")
    report = look(CONFIRM_SECONDS)
    assert (report["findings"], report["complete"]) == ([], {"time": report["time"], "findings": 0})


def test_finding_of_a_deleted_attachment_ends_while_its_datastore_fails(host: Host, look: Looks, sandbox: Sandbox) -> None:
    host.add(sandbox)
    (row,) = host.context.journal.all()
    free(IpamService(host.store, "node1"), row.handle)
    assert set(look.twice()) == {("attachment-unallocated", "net c1 eth0")}
    host.context.networks.note(("", "net"), WHERE)
    host.context.journal.remove(row)
    host.faults.arm(Kind.OUTAGE)
    report = look(CONFIRM_SECONDS)
    assert (len(report["errors"]), [each["id"] for each in report["findings"]]) == (1, [])


def test_conflict_is_a_finding_at_once(host: Host, look: Looks, sandbox: Sandbox) -> None:
    """Before the first comparison, too. It ends with the comparison that its end calls for."""
    host.add(sandbox)
    (row,) = host.context.journal.all()
    look.reconciliation.look()
    assert look.jobs == []
    ipam = IpamService(host.store, "node2")
    free(ipam, row.handle)
    ipam.assign(Assign("net.c9", {"node": "node2"}, addresses=row.address_list()))
    assert not restore(host.context, row.id, host.trace)
    report = look.reconciliation.report
    (finding,) = report["findings"]
    assert (finding["id"], finding["object"], finding["addresses"]) == (
        "attachment-unallocated", "net c1 eth0", row.addresses,
    )  # fmt: skip
    assert row.addresses[0].partition("/")[0] in finding["problem"]
    assert "recreate the workload of net c1 eth0" in finding["fix"]
    assert number_of(look, "attachment-unallocated") == 1
    look.reconciliation.look()
    look.run_jobs()
    assert number_of(look, "attachment-unallocated") == 1
    assert look(CONFIRM_SECONDS)["findings"] == [finding]
    free(ipam, "net.c9")
    assert restore(host.context, row.id, host.trace)
    look.reconciliation.look()
    look.run_jobs()
    assert look.reconciliation.report["findings"] == []
    assert number_of(look, "attachment-unallocated") == 0


def number_of(look: Looks, id_: str) -> float:
    """Return the value of the metric."""
    (number,) = (value for _, labels, value in look.reconciliation.samples() if labels == (("id", id_),))
    return number


def test_incomplete_comparison_is_repeated_after_a_minute(host: Host, look: Looks) -> None:
    host.context.networks.note(("", "net"), WHERE)
    host.faults.arm(Kind.OUTAGE)
    assert len(look()["errors"]) == 1
    host.heal()
    look.clock.seconds += CONFIRM_SECONDS
    look.reconciliation.look()
    assert len(look.jobs) == 1
    look.run_jobs()
    assert look.reconciliation.report["errors"] == []
    look.clock.seconds += RECONCILE_SECONDS - 1
    look.reconciliation.look()
    assert look.jobs == []


def test_report_says_that_the_journal_could_not_be_read_since(host: Host, look: Looks) -> None:
    assert look()["errors"] == []
    look.clock.seconds += RECONCILE_SECONDS
    host.journal_faults.arm(Kind.OUTAGE)
    look.reconciliation.look()
    look.run_jobs()
    assert len(look.reconciliation.report["errors"]) == 1


def test_unreadable_journal_is_reported(host: Host, look: Looks, caplog: pytest.LogCaptureFixture) -> None:
    """The request gets the error. The job logs it, and comes back after the interval."""
    host.journal_faults.arm(Kind.OUTAGE)
    with pytest.raises(SvcError):
        look()
    look.clock.seconds += CONFIRM_SECONDS
    look.reconciliation.look()
    look.run_jobs()
    assert caplog.text.count("this node's attachments cannot be compared now") == 1
    look.clock.seconds += RECONCILE_SECONDS - 1
    look.reconciliation.look()
    assert look.jobs == []
    host.heal()
    look.clock.seconds += 1
    look.reconciliation.look()
    look.run_jobs()
    assert look.reconciliation.report["errors"] == []


def test_comparisons_come_at_intervals(
    host: Host, look: Looks, sandbox: Sandbox, pod: Netns, caplog: pytest.LogCaptureFixture
) -> None:
    """Every 5 minutes, or a minute after something that must be seen twice. A finding is logged once."""
    host.add(sandbox)
    moments = []
    for number in range(600):
        if number == 400:
            pod.run("ip", "link", "delete", "eth0")
        look.reconciliation.look()
        moments += [number] * len(look.jobs)
        look.run_jobs()
        look.clock.seconds += 1
    assert moments == [60, 360]
    for _ in range(600):
        look.clock.seconds += 1
        look.reconciliation.look()
        look.run_jobs()
    assert caplog.text.count("link-missing: net c1 eth0: interface") == 1
