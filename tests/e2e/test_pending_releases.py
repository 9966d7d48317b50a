"""DEL succeeds while the datastore is unusable: the release stays pending, and its retries delay no call."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.state import audit, pod_links, remains
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId, Record

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Damage = Callable[[Path], object]

DAMAGES: dict[str, Damage] = {
    "garbage": lambda path: path.write_bytes(b"not a database" * 1000),
    "a directory": Path.mkdir,
    "a database of another program": lambda path: Journal(path).close(),
    "a dangling link": lambda path: path.symlink_to("/nonexistent/store.db"),
}

PENDING = 70
SILENT = {"kind": "etcdv3", "etcd_endpoints": "http://192.0.2.77:2379"}  # an unused address in the network of the uplink
MAX_SECONDS = 5.0  # less than one request to that address takes


@contextmanager
def store_replaced(node: Node, damage: Damage) -> Iterator[None]:
    """Make the store unusable during the block, also for an agent that starts then."""
    kept = node.directory / "kept"
    kept.mkdir()
    for file in node.state_dir.glob("store.db*"):
        file.rename(kept / file.name)
    store = node.state_dir / "store.db"
    damage(store)
    try:
        yield
    finally:
        for file in node.state_dir.glob("store.db*"):
            remove(file)
        for file in kept.iterdir():
            file.rename(node.state_dir / file.name)
        kept.rmdir()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def states(node: Node) -> dict[str, str]:
    """Return the journal's state of every container."""
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        return {record.id.container_id: record.state for record in journal.all()}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_del_without_a_usable_store_succeeds_and_releases_later(own_pods: MakePod, node: Node, damage: Damage) -> None:
    deleted, kept = own_pods(), own_pods()
    deleted.add()
    kept.add()
    node.stop_agent()
    with store_replaced(node, damage):
        node.start_agent()
        deleted.delete()
        assert deleted.netns.links() == []
        assert list(pod_links(node)) == [kept.host_name]
        assert states(node) == {deleted.container: "deleting", kept.container: "added"}
        node.stop_agent()
    assert len(audit(node).allocations) == 2, "the address was released too early"
    node.start_agent()
    assert list(audit(node).allocations) == kept.addresses
    assert states(node) == {kept.container: "added"}
    assert kept.check().status == 0


def test_del_without_a_store_and_without_an_agent_releases_later(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, DAMAGES["garbage"]):
        pod.delete()
        assert states(node) == {pod.container: "deleting"}
        assert pod.netns.links() == []
    node.start_agent()
    assert remains(node) == []


def test_next_del_retries_a_pending_release(own_pods: MakePod, node: Node) -> None:
    """Runtimes may repeat a DEL."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, DAMAGES["garbage"]):
        pod.delete()
        pod.delete()
    pod.delete()
    assert remains(node) == []


def test_pending_release_is_retried_before_its_container_is_added_again(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, DAMAGES["garbage"]):
        pod.delete()
    first = pod.addresses
    pod.add()
    assert list(audit(node).allocations) == pod.addresses
    assert pod.addresses != first, "the old address was assigned during its cooldown"
    assert states(node) == {pod.container: "added"}


def test_del_of_an_unknown_container_leaves_a_pending_release(own_pods: MakePod, node: Node) -> None:
    """Its addresses may be in the store that cannot be read now."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    (node.state_dir / "journal.db").unlink()
    with store_replaced(node, DAMAGES["garbage"]):
        node.start_agent()
        pod.delete()
        assert states(node) == {pod.container: "deleting"}
        node.stop_agent()
    node.start_agent()
    assert remains(node) == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_other_verbs_report_an_unusable_store(own_pods: MakePod, node: Node, damage: Damage) -> None:
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, damage):
        node.start_agent()
        assert pod.failed("CHECK", prevResult=pod.result).output["code"] == 104
        assert own_pods().failed("ADD").output["code"] == 104
        assert pod.failed("ADD").output["code"] == 104
        status = pod.failed("STATUS").output
        assert (status["code"], "store" in status["msg"]) == (50, True)
        assert pod.failed("GC", **{"cni.dev/valid-attachments": []}).output["code"] == 104
        assert pod.netns.links() == ["eth0"]
        node.stop_agent()
    node.start_agent()
    assert pod.check().status == 0


def add_pending(node: Node, network: str = "net") -> None:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for number in range(PENDING):
            key = AttachmentId(network, f"gone-{number}", "eth0")
            journal.record_pending_release(Record(key, "added", "", (0, 0), "node1", SILENT, "", ""))


def pending(node: Node) -> int:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        return len(journal.pending_releases())


def test_releases_of_a_silent_datastore_do_not_delay_calls(own_pods: MakePod, node: Node) -> None:
    """The agent starts in spite of them. GC of the same network in a datastore that answers does not wait for them."""
    node.stop_agent()
    add_pending(node)
    node.start_agent()
    pod, unknown = own_pods(), own_pods()
    began = time.monotonic()
    pod.add()
    unknown.add()
    attached = {"containerID": pod.container, "ifname": "eth0"}
    valid: dict[str, Any] = {"cni.dev/valid-attachments": [attached]}
    collected = pod.call("GC", **valid)
    assert collected.status == 0, collected
    assert pod.call("STATUS").status == 0
    pod.delete()
    assert time.monotonic() - began < MAX_SECONDS
    assert unknown.netns.links() == []
    assert pending(node) == PENDING
    assert [line for line in remains(node) if "gone-" not in line] == []
