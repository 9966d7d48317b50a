"""Releases that are pending in a datastore that does not answer: they are retried apart from every call."""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.state import remains
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId, Record

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

PENDING = 70
SILENT = {"kind": "etcdv3", "etcd_endpoints": "http://192.0.2.77:2379"}  # in the network of the uplink, and nobody there
SECONDS = 5.0  # less than a single request to it takes


def add_pending(node: Node, network: str = "net") -> None:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        for number in range(PENDING):
            key = AttachmentId(network, f"gone-{number}", "eth0")
            journal.owe(Record(key, "added", "", (0, 0), "node1", SILENT, "", ""))


def pending(node: Node) -> int:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        return len(journal.owed())


def test_releases_of_a_silent_datastore_hold_up_no_call(own_pods: MakePod, node: Node) -> None:
    """The agent starts beside them, and GC of the same network, in a datastore that answers, does not wait for them."""
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
    assert time.monotonic() - began < SECONDS
    assert unknown.netns.links() == []
    assert pending(node) == PENDING
    assert [line for line in remains(node) if "gone-" not in line] == []


def test_pending_release_is_listed_and_dropped(node: Node) -> None:
    """While the agent runs; the reason is kept, and what is not pending is not dropped."""
    add_pending(node)
    listed = json.loads(node.svcctl("-o", "json", "release", "list").stdout)
    assert len(listed) == PENDING
    assert {"network": "net", "container": "gone-0", "interface": "eth0"}.items() <= listed[0].items()
    assert "http://192.0.2.77:2379" in listed[0]["datastore"]
    node.svcctl("release", "drop", "net", "gone-0", "eth0", "--reason", "the server is gone for good")
    assert pending(node) == PENDING - 1
    again = node.svcctl("release", "drop", "net", "gone-0", "eth0", "--reason", "twice", check=False)
    assert again.returncode == 1
    assert "no release of container 'gone-0'" in again.stderr
    with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
        kept = journal.execute("SELECT container, reason FROM set_aside").fetchall()
    assert kept == [("gone-0", "dropped: the server is gone for good")]
