"""An ADD that waits does not keep the requests of others from being written."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.inprocess import WHERE, Host
from svc.attach.add import add
from svc.attach.record import AttachmentId
from svc.attach.request import AddRequest, Sandbox
from svc.model.endpoint import Workload
from svc.model.waits import GateSettings, PolicySettings
from svc.waits.wait import WaitOutcome

pytestmark = pytest.mark.root

POD = AddRequest(AttachmentId("net", "c1", "eth0"), Workload("c1", "web-0", "shop"), None, WHERE, (4,), {})


@pytest.fixture
def announced(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of what has begun and ended, in order."""
    events: list[str] = []
    session = host.context.session(WHERE)

    @contextmanager
    def announce() -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    monkeypatch.setattr(session.ipam, "announced", announce)
    return events


def test_at_a_gate_nothing_is_announced(host: Host, sandbox: Sandbox, announced: list[str]) -> None:
    request = replace(POD, sandbox=sandbox, gates=GateSettings(("http://127.0.0.1:1/",), 60))
    steps = add(host.context, request, host.trace)
    wait = next(steps)
    assert announced == []
    wait.end(WaitOutcome.READY)
    with pytest.raises(StopIteration):
        next(steps)
    assert announced == ["begin", "end"]


def test_while_it_waits_for_policy_nothing_is_announced(
    host: Host, sandbox: Sandbox, announced: list[str], tmp_path: Path
) -> None:
    request = replace(POD, sandbox=sandbox, policy_setup=PolicySettings(60, str(tmp_path)))
    steps = add(host.context, request, host.trace)
    wait = next(steps)
    assert announced == ["begin", "end"]
    wait.end(WaitOutcome.READY)
    with pytest.raises(StopIteration):
        next(steps)
