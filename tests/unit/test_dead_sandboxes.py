"""Whether the sandbox of an attachment without an interface still exists."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from svc.attach.context import Context
from svc.attach.dead_sandboxes import dead_attachments
from svc.attach.record import ADDED, AttachmentId, Record, SessionKey
from svc.model.endpoint import Workload
from svc.names import DEFAULT

BOOT = "boot"
CONTEXT = cast(Context, SimpleNamespace(boot_id=BOOT))
WHERE = SessionKey({"kind": "embedded"}, "node1", "")


def record_in(path: Path | str, sandbox: tuple[int, int]) -> Record:
    found = Record.of(AttachmentId("net", "c1", "eth0"), Workload("c1", "", ""), WHERE, DEFAULT, BOOT)
    result: dict[str, Any] = {"interfaces": [{"name": "svc0"}, {"name": "eth0", "sandbox": str(path)}]}
    found.state, found.host_name, found.host_index, found.sandbox, found.result = ADDED, "svc0", 7, sandbox, result
    return found


def is_dead(record: Record) -> bool:
    return bool(dead_attachments(CONTEXT, [record], lambda index: False))


@pytest.fixture
def namespaces(tmp_path: Path) -> Path:
    folder = tmp_path / "netns"
    folder.mkdir()
    return folder


def test_missing_or_replaced_sandbox_is_dead(namespaces: Path) -> None:
    path = namespaces / "pod"
    assert is_dead(record_in(path, (1, 2)))
    path.touch()
    assert is_dead(record_in(path, (1, 2)))
    assert not is_dead(record_in(path, (path.stat().st_dev, path.stat().st_ino)))


def test_sandbox_in_a_directory_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    """The directory of the runtime is not mounted in the container of the agent."""
    assert not is_dead(record_in(tmp_path / "not-mounted" / "pod", (1, 2)))


def test_sandbox_of_an_ended_process_is_dead() -> None:
    assert is_dead(record_in("/proc/4194305/ns/net", (1, 2)))
