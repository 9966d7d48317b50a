"""Spans of calls: their form, and receivers that do not take them."""

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.polling import wait_until
from svc.agent import tracing
from svc.agent.tracing import Tracer
from svc.call_trace import CallTrace

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Dropped:
    """The number of spans that a tracer has dropped."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int) -> None:
        self.number += number


@pytest.fixture
def dropped() -> Dropped:
    return Dropped()


@pytest.fixture(autouse=True)
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PERIOD_SECONDS", 0.01)


def call(**fields: str) -> CallTrace:
    """Return the trace of an ADD with two phases."""
    trace = CallTrace("12345678")
    trace.spans = []
    trace.fields |= {"verb": "ADD", "container": "c1", "network": "net", **fields}
    trace.phases["queue"] = 2.0
    for phase in ("ipam", "kernel"):
        with trace.phase(phase):
            time.sleep(0.002)
    return trace


def spans(line: str) -> list[dict[str, Any]]:
    (resource,) = json.loads(line)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return list(scope["spans"])


def written(path: Path) -> list[dict[str, Any]]:
    return [span for line in path.read_text().splitlines() for span in spans(line)]


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"]["stringValue"] for each in span["attributes"]}


@contextmanager
def server(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/v1/traces?token=secret"
        finally:
            running.shutdown()
            thread.join()


class Collector(http.server.BaseHTTPRequestHandler):
    """A collector that keeps what it gets."""

    status = 200
    answer = b"{}"
    received: list[tuple[str, str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Content-Type"], body))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *arguments: object) -> None:
        pass


def test_span_of_a_call_has_its_phases_as_children(tmp_path: Path, dropped: Dropped) -> None:
    path, before = tmp_path / "traces.json", time.time_ns()
    with closing(Tracer(str(path), dropped)) as tracer:
        arrived = time.perf_counter()
        tracer.add(call(traceparent=f"00-{TRACE}-{PARENT}-01", pod="ns/web"), 0, arrived)
    root, *children = written(path)
    assert (root["name"], root["kind"], root["status"]) == ("CNI ADD", 2, {"code": 1})
    assert (root["traceId"], root["parentSpanId"]) == (TRACE, PARENT)
    assert attributes(root) == {
        "cni.verb": "ADD",
        "cni.container_id": "c1",
        "cni.network": "net",
        "cni.pod": "ns/web",
        "svc.request": "12345678",
    }
    assert [child["name"] for child in children] == ["queue", "ipam", "kernel"]
    for child in children:
        assert (child["traceId"], child["parentSpanId"]) == (TRACE, root["spanId"])
        assert int(child["startTimeUnixNano"]) < int(child["endTimeUnixNano"])
    assert before <= int(root["startTimeUnixNano"]) < int(root["endTimeUnixNano"]) <= time.time_ns()
    assert int(children[0]["endTimeUnixNano"]) - int(children[0]["startTimeUnixNano"]) == pytest.approx(2e6, rel=0.01)
    assert int(children[1]["endTimeUnixNano"]) <= int(children[2]["startTimeUnixNano"])
    assert len({span["spanId"] for span in (root, *children)}) == 4
    assert dropped.number == 0


def test_call_without_a_trace_context_begins_a_trace(tmp_path: Path, dropped: Dropped) -> None:
    path = tmp_path / "traces.json"
    with closing(Tracer(str(path), dropped)) as tracer:
        for _ in range(2):
            tracer.add(call(), 0, time.perf_counter())
    roots = [span for span in written(path) if span["name"] == "CNI ADD"]
    assert len({root["traceId"] for root in roots}) == 2
    assert not [root for root in roots if "parentSpanId" in root]
    assert all(len(root["traceId"]) == 32 and len(root["spanId"]) == 16 for root in roots)


def test_trace_that_is_not_sampled_is_left_out(tmp_path: Path, dropped: Dropped) -> None:
    path = tmp_path / "traces.json"
    with closing(Tracer(str(path), dropped)) as tracer:
        tracer.add(call(traceparent=f"00-{TRACE}-{PARENT}-00"), 0, time.perf_counter())
        tracer.add(call(traceparent=f"00-{TRACE}-{PARENT}-03"), 0, time.perf_counter())
    assert len([span for span in written(path) if span["name"] == "CNI ADD"]) == 1
    assert dropped.number == 0


def test_failed_call_has_its_error(tmp_path: Path, dropped: Dropped) -> None:
    path, trace = tmp_path / "traces.json", call()
    trace.error("code 7: mtu = 'x' is not a number")
    with closing(Tracer(str(path), dropped)) as tracer:
        tracer.add(trace, 1, time.perf_counter())
    (root,) = [span for span in written(path) if span["name"] == "CNI ADD"]
    assert root["status"]["code"] == 2
    assert root["status"]["message"] == "code 7: mtu = 'x' is not a number"


def test_text_that_is_not_utf8_is_escaped(tmp_path: Path, dropped: Dropped) -> None:
    """The environment of a call may have any bytes."""
    path, trace = tmp_path / "traces.json", call(pod="ns/\udcff")
    trace.error("code 4: K8S_POD_NAME = '\udcff' is not a name")
    with closing(Tracer(str(path), dropped)) as tracer:
        tracer.add(trace, 1, time.perf_counter())
    (root,) = [span for span in written(path) if span["name"] == "CNI ADD"]
    assert attributes(root)["cni.pod"] == "ns/\\udcff"
    assert root["status"]["message"] == "code 4: K8S_POD_NAME = '\\udcff' is not a name"
    assert dropped.number == 0


def test_batch_that_cannot_be_encoded_does_not_end_the_delivery(
    tmp_path: Path, dropped: Dropped, caplog: pytest.LogCaptureFixture
) -> None:
    path, bad = tmp_path / "traces.json", call()
    bad.phases["queue"] = float("nan")
    with closing(Tracer(str(path), dropped)) as tracer:
        tracer.add(bad, 0, time.perf_counter())
        wait_until(lambda: dropped.number == 4)
        tracer.add(call(), 0, time.perf_counter())
    assert len(written(path)) == 4
    assert "traces are dropped" in caplog.text


def test_calls_of_before_the_end_are_delivered(tmp_path: Path, dropped: Dropped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PERIOD_SECONDS", 60)
    path = tmp_path / "traces.json"
    for number in range(1, 51):
        tracer = Tracer(str(path), dropped)
        tracer.add(call(), 0, time.perf_counter())
        tracer.close()
        assert len(written(path)) == 4 * number


def test_file_is_rotated_and_readable_by_root(tmp_path: Path, dropped: Dropped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FILE_BYTES", 4096)
    path = tmp_path / "traces.json"
    with closing(Tracer(str(path), dropped)) as tracer:
        for number in range(20):
            tracer.add(call(container=f"c{number}"), 0, time.perf_counter())
            wait_until(lambda: not tracer._calls)
    assert path.stat().st_mode & 0o137 == 0
    assert 1 < len(list(tmp_path.glob("traces-*"))) <= 4
    assert dropped.number == 0


def test_file_that_cannot_be_written_is_an_error(tmp_path: Path, dropped: Dropped) -> None:
    with pytest.raises(OSError, match="directory"):
        Tracer(str(tmp_path), dropped)


def test_collector_gets_the_spans(dropped: Dropped) -> None:
    Collector.received, Collector.status, Collector.answer = [], 200, b'{"partialSuccess":{}}'
    with server(Collector) as url, closing(Tracer(url, dropped)) as tracer:
        tracer.add(call(), 0, time.perf_counter())
        wait_until(lambda: bool(Collector.received))
    ((path, kind, body),) = Collector.received
    assert (path, kind) == ("/v1/traces?token=secret", "application/json")
    assert [span["name"] for span in spans(body.decode())] == ["CNI ADD", "queue", "ipam", "kernel"]
    assert dropped.number == 0


def test_refused_spans_are_dropped_and_reported_once(dropped: Dropped, caplog: pytest.LogCaptureFixture) -> None:
    """The log has no query of the URL, which may be a secret. It also tells when the collector takes spans again."""
    caplog.set_level("INFO", "svc.agent")
    Collector.received, Collector.status, Collector.answer = [], 503, b'{"message": "the queue\\nis full"}'
    with server(Collector) as url, closing(Tracer(url, dropped)) as tracer:
        for number in (1, 2):
            tracer.add(call(), 0, time.perf_counter())
            wait_until(lambda number=number: dropped.number == 4 * number)  # type: ignore[misc]
        Collector.status, Collector.answer = 200, b""
        tracer.add(call(), 0, time.perf_counter())
        wait_until(lambda: len(Collector.received) == 3)
        wait_until(lambda: len(caplog.messages) == 2)
    assert "does not take them: it answered 503 Service Unavailable: the queue is full" in caplog.messages[0]
    assert "again" in caplog.messages[1]
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("partial", "number"),
    [
        ({"rejectedSpans": "3", "errorMessage": "too old"}, 3),
        ({"rejectedSpans": 3, "errorMessage": "too old"}, 3),
        ({"errorMessage": "a warning"}, 0),
        ({}, 0),
        ({"rejectedSpans": "many"}, 4),
    ],
)
def test_spans_that_a_collector_rejects_are_counted(
    partial: dict[str, Any], number: int, dropped: Dropped, caplog: pytest.LogCaptureFixture
) -> None:
    """It accepts the request, and says how many of its spans it has rejected. If it says nothing legible, all count."""
    Collector.received, Collector.status, Collector.answer = [], 200, json.dumps({"partialSuccess": partial}).encode()
    with server(Collector) as url, closing(Tracer(url, dropped)) as tracer:
        tracer.add(call(), 0, time.perf_counter())
        wait_until(lambda: bool(Collector.received))
    assert dropped.number == number
    assert ("it rejected spans: too old" in caplog.text) == (number == 3)


@pytest.mark.parametrize(
    ("url", "port", "path"),
    [
        ("http://[::1]/v1/traces", 80, "/v1/traces"),
        ("https://[::1]", 443, "/v1/traces"),
        ("http://[::1]:4318/", 4318, "/v1/traces"),
        ("http://[::1]:4318/otlp/?a=b", 4318, "/otlp/?a=b"),
        ("http://[::1]:4318?a=b", 4318, "/v1/traces?a=b"),
    ],
)
def test_port_and_path_that_a_url_lacks_are_those_of_otlp(url: str, port: int, path: str) -> None:
    collector = tracing._Collector(url)
    connection = collector._connection()
    assert (connection.host, connection.port, collector._path) == ("::1", port, path)


def test_collector_that_never_answers_does_not_matter(
    dropped: Dropped, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The buffer is bounded, `add` returns at once, and the agent ends in time."""
    monkeypatch.setattr(tracing, "MAX_CALLS", 100)
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracer = Tracer(f"http://127.0.0.1:{silent.getsockname()[1]}/", dropped)
        trace = call()
        tracer.add(trace, 0, time.perf_counter())
        wait_until(lambda: not tracer._calls)  # the thread waits for the answer
        began = time.monotonic()
        for _ in range(2000):
            tracer.add(trace, 0, time.perf_counter())
        assert time.monotonic() - began < 1
        assert len(tracer._calls) == 100
        assert dropped.number == 1900 * 4
        began = time.monotonic()
        tracer.close()
        assert time.monotonic() - began < 1
    assert "400 spans were not delivered" in caplog.text
    wait_until(lambda: "traces" not in {thread.name for thread in threading.enumerate()})
