"""What svc-controllers serves over HTTP: the ports of the configuration, their failures, and the metrics of the parts."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from svc.controllers.conditions import Condition, Conditions
from svc.controllers.configuration import Configuration, Live
from svc.controllers.controller import STUCK_SECONDS, Controller, Tally
from svc.controllers.serving import SERVED, Serving, stacks
from svc.controllers.telemetry import Telemetry


@pytest.fixture
def serving() -> Iterator[Any]:
    live, conditions = Live(Configuration()), Conditions()
    with closing(Serving(live, conditions, lambda: "metrics")) as made:
        yield SimpleNamespace(step=made.step, live=live, conditions=conditions)


def fetch(host: str, port: int, path: str) -> str:
    with socket.create_connection((host, port), 10) as connection, connection.makefile("rb") as reply:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return bytes(reply.read()).decode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def is_served(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("field", "path", "part"), [("metrics_port", "/metrics", "metrics"), ("debug_port", "/stacks", "Main")]
)
def test_ports_follow_the_configuration(field: str, path: str, part: str, serving: Any) -> None:
    serving.step()
    first, second = free_port(), free_port()
    for port in (first, second):
        serving.live.replace(Configuration(**{field: port}))  # type: ignore[arg-type]
        serving.step()
        assert part in fetch("127.0.0.1", port, path)
    assert not is_served(first)
    serving.live.replace(Configuration())
    serving.step()
    assert not is_served(second)


def test_stacks_are_only_served_on_the_loopback_address(serving: Any) -> None:
    serving.live.replace(Configuration(metrics_port=free_port(), debug_port=free_port()))
    serving.step()
    now = serving.live.now
    assert is_served(now.metrics_port, "127.0.0.2")
    assert is_served(now.debug_port)
    assert not is_served(now.debug_port, "127.0.0.2")


def test_port_in_use_is_reported_and_tried_again(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serving.live.replace(Configuration(metrics_port=port))
        for _ in range(3):
            serving.step()
        problem = f"spec.prometheusMetricsPort = {port} cannot be served: Address already in use: give a port that is free"
        assert serving.conditions.all() == (Condition(SERVED, "False", "PortUnavailable", problem),)
        assert caplog.messages == [problem]  # once, not with each attempt
    serving.step()
    assert "metrics" in fetch("127.0.0.1", port, "/metrics")
    assert [each.status for each in serving.conditions.all()] == ["True"]


def test_stacks_name_each_thread() -> None:
    found = stacks()
    assert "thread MainThread" in found
    assert "test_stacks_name_each_thread" in found


def test_metrics_add_up_the_parts_of_a_controller() -> None:
    """A part has metrics of its own."""

    def part(settled: int, own: list[Any]) -> Any:
        return SimpleNamespace(name="node", waiting=1, tally=Tally(settled, 2, 1, 0.25, written=5), families=lambda: own)

    conditions = Conditions()
    conditions.set(Condition("Kind", "False", "Reason", "message"))
    shared: Any = SimpleNamespace(election=SimpleNamespace(leads=True), conditions=conditions)
    parts = [part(3, []), part(4, [("controllers_queue_length", (("controller", "own"),), 9)])]
    found = {(name, labels): value for name, labels, value in Telemetry(shared, parts, {}).samples()}
    label = (("controller", "node"),)
    assert found["controllers_settled_total", label] == 7
    assert found["controllers_failures_total", label] == 4
    assert found["controllers_writes_total", label] == 10
    assert found["controllers_round_seconds_sum", label] == 0.5
    assert found["controllers_round_seconds_count", label] == 2
    assert found["controllers_queue_length", label] == 2
    assert found["controllers_queue_length", (("controller", "own"),)] == 9
    assert found["controllers_leads", ()] == 1
    assert found["controllers_condition", (("condition", "Kind"), ("status", "False"), ("reason", "Reason"))] == 1
    text = Telemetry(shared, parts, {}).text()
    assert 'svc_controllers_settled_total{controller="node"} 7' in text


def test_part_that_has_ended_or_is_stuck_is_trouble() -> None:
    part: Any = SimpleNamespace(name="node", _thread=SimpleNamespace(is_alive=lambda: True), _work=None)
    trouble: Any = Controller.trouble.fget  # type: ignore[attr-defined]
    assert trouble(part) == ""
    part._work = time.monotonic() - STUCK_SECONDS + 60, "node1"
    assert trouble(part) == ""
    part._work = time.monotonic() - STUCK_SECONDS - 1, "node1"
    assert trouble(part) == "controller node has worked on node1 for 601 s"
    part._thread.is_alive = lambda: False
    assert trouble(part) == "controller node has ended"
