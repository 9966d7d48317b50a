"""Two machines with one node name: svc refuses the second machine until the first one has stopped."""

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, audit, remains
from harness.datastores import Site, furnish
from harness.netns import Netns
from harness.node import Called, agent_with
from harness.pod import Pod
from svc.attach import node_claim
from svc.attach.journal import Journal

pytestmark = [pytest.mark.root, pytest.mark.slow]

CLAIMED, NOT_READY = 116, 50
DECISION_SECONDS, TAKEOVER_SECONDS = 8.0, 15.0  # for agents with a third of the usual times
AGENT = agent_with(
    {
        f"{node_claim.__name__}.RENEW_SECONDS": 1.5,
        f"{node_claim.__name__}.WATCH_SECONDS": 5.0,
        f"{node_claim.__name__}.POLL_SECONDS": 0.3,
    }
)

IN_ANOTHER_BOOT = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'

MakePod = Callable[[ClusterNode, str], Pod]


@pytest.fixture
def machines(site: Site, tmp_path: Path) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    """Two machines that both have the node name node1."""
    furnish(site, "node1")
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(ClusterNode(tmp_path / name, "node1", site, agent_program=AGENT))
            for name in ("first", "second")
        )
        yield first, second
        assert remains([first, second]) == []
    site.clear()


@pytest.fixture
def pod_on(site: Site, sandbox: Callable[[], Netns]) -> MakePod:
    def make(node: ClusterNode, name: str) -> Pod:
        site.add_pod(name)
        return node.pod(sandbox(), f"container-{name}", args=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default")

    return make


def gc(node: ClusterNode, *valid: Pod) -> Called:
    known: list[dict[str, Any]] = [{"containerID": pod.container, "ifname": pod.ifname} for pod in valid]
    return node.call("GC", node.netconf(**{"cni.dev/valid-attachments": known}), container="", ifname="")


def test_second_machine_is_refused_until_the_first_one_stops(
    machines: tuple[ClusterNode, ClusterNode], pod_on: MakePod
) -> None:
    """The error names both machines. After the takeover, GC keeps the addresses of the first machine."""
    first, second = machines
    old, new = pod_on(first, "old"), pod_on(second, "new")
    old.add()
    began = time.monotonic()
    error = new.failed("ADD").output
    assert time.monotonic() - began < DECISION_SECONDS
    assert error["code"] == CLAIMED, error
    message = error["msg"] + error["details"]
    assert all(text in message for text in (str(first.state_dir), str(second.state_dir), "'node1'", "nodename")), message
    assert gc(second).output["code"] == CLAIMED
    status = new.failed("STATUS").output
    assert status["code"] == NOT_READY
    assert str(first.state_dir) in status["details"]
    new.delete()
    assert old.check().status == 0
    assert set(audit([first]).allocations) == set(old.addresses)

    first.stop_agent()
    began = time.monotonic()
    while new.call("STATUS").status:
        assert time.monotonic() - began < TAKEOVER_SECONDS
    new.add()
    assert gc(second, new).status == 0
    assert set(audit([first, second]).allocations) == {*old.addresses, *new.addresses}
    new.delete()
    old.delete()


def test_cloned_machine_releases_nothing(machines: tuple[ClusterNode, ClusterNode], pod_on: MakePod, tmp_path: Path) -> None:
    """Its journal is a copy. Neither the start of its agent nor a DEL changes anything of the original."""
    original, clone = machines
    pod = pod_on(original, "web")
    pod.add()
    clone.stop_agent()
    copy_journal(original, clone)
    boot = tmp_path / "boot_id"
    boot.write_text(f"{uuid.uuid4()}\n")
    clone.start_agent("unshare", "--mount", "sh", "-c", IN_ANOTHER_BOOT, str(boot), *AGENT)
    assert audit([clone]).records == []
    pod.copy(node=clone).call("DEL", netns="")
    assert pod.check().status == 0
    assert set(audit([original]).allocations) == set(pod.addresses)
    pod.delete()


def test_refused_machine_releases_nothing(machines: tuple[ClusterNode, ClusterNode], pod_on: MakePod) -> None:
    """It has no agent. The release of a row from an earlier boot stays pending, and a DEL without a row does nothing."""
    active, refused = machines
    recorded, unrecorded = pod_on(active, "recorded"), pod_on(active, "unrecorded")
    recorded.add()
    refused.stop_agent()
    copy_journal(active, refused)
    with closing(Journal(refused.state_dir / "journal.db")) as journal:
        (row,) = journal.all()
        row.boot_id = "an earlier boot"
        journal.update(row)
    unrecorded.add()
    for pod in (recorded, unrecorded):
        called = pod.copy(node=refused).call("DEL", netns="")
        assert (called.status, called.output) == (0, None), called
    assert [record.state for record in audit([refused]).records] == ["deleting"]
    assert [pod.check().status for pod in (recorded, unrecorded)] == [0, 0]
    assert set(audit([active]).allocations) == {*recorded.addresses, *unrecorded.addresses}
    for pod in (recorded, unrecorded):
        pod.delete()
    active.stop_agent()
    assert gc(refused).status == 0


def copy_journal(source: ClusterNode, target: ClusterNode) -> None:
    with (
        closing(sqlite3.connect(source.state_dir / "journal.db")) as original,
        closing(sqlite3.connect(target.state_dir / "journal.db")) as copy,
    ):
        original.backup(copy)


def test_restart_keeps_the_name(site: Site, tmp_path: Path, pod_on: MakePod) -> None:
    """Calls succeed at once, with an agent and without one."""
    furnish(site, "node1")
    with ClusterNode(tmp_path / "node", "node1", site) as node:
        for name in ("before", "after"):
            pod = pod_on(node, name)
            began = time.monotonic()
            pod.add()
            pod.delete()
            assert time.monotonic() - began < DECISION_SECONDS / 2
            node.stop_agent()
            if name == "before":
                node.start_agent()
        without_agent = pod_on(node, "without")
        without_agent.add()
        without_agent.delete()
        assert remains([node]) == []
    site.clear()
