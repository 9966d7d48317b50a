"""Releases that are pending in a datastore that does not answer: they are retried apart from every call."""

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
SILENT = {"kind": "etcdv3", "etcd_endpoints": "http://192.0.2.77:2379"}  # in the network of the uplink; no server has it
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
