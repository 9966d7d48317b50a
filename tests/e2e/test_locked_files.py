"""Another process keeps a file of the node locked: calls wait in parallel, and their errors name that process."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness.node import Node
from harness.pod import Pod
from harness.state import remains

pytestmark = pytest.mark.root

ADDS = 12
MAX_SECONDS = 9.0  # for one wait, with a margin for a busy machine

MakePod = Callable[..., Pod]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep the file locked, as another process that writes to it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("file", ["journal.db", "store.db"])
def test_adds_with_a_locked_file_fail_in_parallel(own_pods: MakePod, node: Node, file: str) -> None:
    """Together they take the time of one wait. Their errors name the process that has the lock, and nothing is left."""
    pods = [own_pods() for _ in range(ADDS)]
    with locked(node.state_dir / file):
        began = time.monotonic()
        calls = [pod.begin("ADD") for pod in pods]
        outputs = [call.result().output for call in calls]
        assert time.monotonic() - began < MAX_SECONDS
    assert {output["code"] for output in outputs} == {104}
    assert all(f"process {os.getpid()} (" in output["details"] for output in outputs), outputs[0]
    assert [pod.netns.links() for pod in pods] == [[]] * ADDS
    assert remains(node) == []
    pods[0].add()
    pods[0].delete()
