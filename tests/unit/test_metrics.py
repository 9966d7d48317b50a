"""Metrics of the agent: counters and their export."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from svc.agent.metrics_server import CONTENT_TYPE, MetricsServer, exposition
from svc.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(metrics: Metrics) -> Iterator[MetricsServer]:
    with closing(MetricsServer("127.0.0.1", 0, metrics)) as server:
        yield server


def samples(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_counters_are_summed_by_labels(metrics: Metrics) -> None:
    metrics.count("calls_total", verb="ADD", outcome="ok")
    metrics.count("calls_total", verb="ADD", outcome="ok")
    metrics.count("calls_total", verb="DEL", outcome="error")
    metrics.count("queue_seconds_sum", 0.25)
    metrics.count("queue_seconds_sum", 0.5)
    assert sorted(samples(exposition(metrics))) == [
        'svc_calls_total{verb="ADD",outcome="ok"} 2',
        'svc_calls_total{verb="DEL",outcome="error"} 1',
        "svc_package_changes_total 0",
        "svc_queue_seconds_count 0",
        "svc_queue_seconds_sum 0.75",
    ]


def test_counters_without_labels_begin_with_0(metrics: Metrics) -> None:
    """Prometheus sees no increase from an absent counter to 1."""
    lines = ["svc_queue_seconds_sum 0", "svc_queue_seconds_count 0", "svc_package_changes_total 0"]
    assert samples(exposition(metrics)) == lines


def test_every_family_has_a_help_text_and_a_type(metrics: Metrics) -> None:
    lines = [line for line in exposition(metrics).splitlines() if line.startswith("#")]
    assert len(lines) % 2 == 0
    for help_line, kind in zip(lines[::2], lines[1::2], strict=True):
        assert help_line.startswith("# HELP svc_")
        assert kind == f"# TYPE {help_line.split()[2]} counter"


def test_threads_lose_no_count(metrics: Metrics) -> None:
    def count_many() -> None:
        for _ in range(2000):
            metrics.count("calls_total", verb="ADD", outcome="ok")

    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(count_many)
    assert 'svc_calls_total{verb="ADD",outcome="ok"} 16000' in samples(exposition(metrics))


def test_metrics_are_served(server: MetricsServer, metrics: Metrics) -> None:
    metrics.count("policy_waits_total", outcome="timeout")
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as reply:
        assert reply.headers["Content-Type"] == CONTENT_TYPE
        assert 'svc_policy_waits_total{outcome="timeout"} 1' in reply.read().decode()


def test_other_paths_are_not_served(server: MetricsServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/")
    assert caught.value.code == 404
    caught.value.close()


def test_silent_client_does_not_block_other_clients(server: MetricsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as reply:
            assert reply.status == 200
