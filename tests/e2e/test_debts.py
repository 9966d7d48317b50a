"""A DEL is answered when the datastore is gone; what it owes is remembered, and paid when the datastore is back."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.state import books, pod_links, remains
from svc.attach.journal import Journal

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Damage = Callable[[Path], object]

DAMAGES: dict[str, Damage] = {
    "garbage": lambda path: path.write_bytes(b"not a database" * 1000),
    "a directory": Path.mkdir,
    "a database of another program": lambda path: Journal(path).close(),
    "a dangling link": lambda path: path.symlink_to("/nonexistent/store.db"),
}


@contextmanager
def store_replaced(node: Node, damage: Damage) -> Iterator[None]:
    """For the time of the block the store is unusable, as an agent finds it that is started meanwhile."""
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
    """Of every attachment, as the journal has it."""
    journal = Journal(node.state_dir / "journal.db")
    try:
        return {record.id.container_id: record.state for record in journal.all()}
    finally:
        journal.close()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_del_without_a_usable_store_is_answered_and_paid_later(own_pods: MakePod, node: Node, damage: Damage) -> None:
    gone, kept = own_pods(), own_pods()
    gone.add()
    kept.add()
    node.stop_agent()
    with store_replaced(node, damage):
        node.start_agent()
        gone.delete()
        assert gone.netns.links() == []
        assert list(pod_links(node)) == [kept.host_name]
        assert states(node) == {gone.container: "deleting", kept.container: "added"}
        node.stop_agent()
    assert len(books(node).allocations) == 2, "the address is still held"
    node.start_agent()
    assert list(books(node).allocations) == kept.addresses
    assert states(node) == {kept.container: "added"}
    assert kept.check().status == 0


def test_del_without_a_store_and_without_an_agent_is_paid_later(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, DAMAGES["garbage"]):
        pod.delete()
        assert states(node) == {pod.container: "deleting"}
        assert pod.netns.links() == []
    node.start_agent()
    assert remains(node) == []


def test_debt_is_paid_by_the_next_del_too(own_pods: MakePod, node: Node) -> None:
    """Runtimes repeat a DEL now and then."""
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, DAMAGES["garbage"]):
        pod.delete()
        pod.delete()
    pod.delete()
    assert remains(node) == []


def test_debt_is_paid_before_its_container_is_added_again(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    node.stop_agent()
    with store_replaced(node, DAMAGES["garbage"]):
        pod.delete()
    first = pod.addresses
    pod.add()
    assert list(books(node).allocations) == pod.addresses
    assert pod.addresses != first, "the old address rests"
    assert states(node) == {pod.container: "added"}


def test_del_of_a_container_that_nobody_knows_leaves_a_debt_too(own_pods: MakePod, node: Node) -> None:
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
def test_other_verbs_say_that_the_store_is_unusable(own_pods: MakePod, node: Node, damage: Damage) -> None:
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
