"""Spans of a real agent: in a file, at the OTLP receiver of a collector, and at one that never answers."""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.certificates import Authority
from harness.enter_netns import entered
from harness.node import BIN, Node
from harness.otlp import attributes, receiver
from harness.pod import Pod
from harness.polling import wait_until
from svc.agent.tracing import Tracer
from svc.call_trace import CallTrace

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

SERVER, INTERNAL = 2, 1  # span kinds of OTLP
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def spans(node: Node) -> list[dict[str, Any]]:
    """Return the spans in the file, which must be complete lines."""
    lines = (node.directory / "traces.json").read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    return [span for request in requests for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def test_calls_are_traced_to_a_file(node: Node, own_pods: MakePod) -> None:
    """The span of the runtime is the parent. The last spans are written when the agent ends."""
    node.stop_agent()
    file = node.directory / "traces.json"
    node.start_agent(options=("--traces", str(file)))
    pod = own_pods()
    parent = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
    before = time.time_ns()
    called = node.call("ADD", pod.config, container=pod.container, netns=pod.netns.path, extra=parent)
    assert called.status == 0, called
    after = time.time_ns()
    wait_until(lambda: bool(file.read_bytes()))
    root, *phases = spans(node)
    assert (root["name"], root["traceId"], root["parentSpanId"], root["status"]["code"]) == ("CNI ADD", TRACE, PARENT, 1)
    assert before < int(root["startTimeUnixNano"]) < int(root["endTimeUnixNano"]) < after
    assert {phase["parentSpanId"] for phase in phases} == {root["spanId"]}
    assert {"queue", "journal", "ipam", "kernel"} <= {phase["name"] for phase in phases}
    for phase in phases:
        assert int(root["startTimeUnixNano"]) - 1000 <= int(phase["startTimeUnixNano"])
        assert int(phase["endTimeUnixNano"]) <= int(root["endTimeUnixNano"]) + 1000
    pod.failed("ADD", mtu="nonsense")
    pod.delete()
    assert node.stop_agent() == 0
    found = {span["name"]: span for span in spans(node)[len(phases) + 1 :]}
    assert (found["CNI ADD"]["status"]["code"], "mtu" in found["CNI ADD"]["status"]["message"]) == (2, True)
    assert found["CNI DEL"]["status"]["code"] == 1
    assert "unwire" in found
    assert file.stat().st_mode & 0o137 == 0


def test_receiver_of_a_collector_takes_the_spans(node: Node, own_pods: MakePod, tmp_path: Path) -> None:
    """It decodes each field: what it does not know is missing in its output, and a wrong type is refused."""
    node.stop_agent()
    with receiver(tmp_path / "received", ("ip", "netns", "exec", node.netns.name)) as collector:
        node.start_agent(options=("--traces", collector.url))
        pod = own_pods(args="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")
        parent = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
        called = node.call("ADD", pod.config, container=pod.container, netns=pod.netns.path, args=pod.args, extra=parent)
        assert called.status == 0, called
        pod.failed("ADD", mtu="nonsense")
        pod.delete()
        assert node.stop_agent() == 0
        roots = [span for span in collector.spans() if span["kind"] == SERVER]
        phases = [span for span in collector.spans() if span["kind"] == INTERNAL]
        resources = [found["resource"] for request in collector.requests() for found in request["resourceSpans"]]
    assert [(root["name"], root["status"]["code"]) for root in roots] == [("CNI ADD", 1), ("CNI ADD", 2), ("CNI DEL", 1)]
    assert (roots[0]["traceId"], roots[0]["parentSpanId"]) == (TRACE, PARENT)
    assert roots[0]["attributes"] | {"svc.request": ""} == {
        "cni.verb": "ADD",
        "cni.container_id": pod.container,
        "cni.ifname": "eth0",
        "cni.network": pod.config["name"],
        "cni.pod": "shop/web-0",
        "svc.request": "",
    }
    assert roots[1]["status"]["message"].startswith("code 7: ")
    assert {phase["parentSpanId"] for phase in phases} <= {root["spanId"] for root in roots}
    assert {"queue", "journal", "ipam", "kernel", "unwire"} <= {phase["name"] for phase in phases}
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in roots + phases)
    assert {attributes(resource)["service.name"] for resource in resources} == {"svc-agent"}
    assert "traces are dropped" not in node.log.read_text()


def add(tracer: Tracer) -> None:
    trace = CallTrace("12345678")
    trace.fields["verb"], trace.spans = "ADD", []
    tracer.add(trace, 0, time.perf_counter())


def test_receiver_over_https_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The authorities are those of the system, or of SSL_CERT_FILE."""
    authority, dropped = Authority(tmp_path, "authority"), list[int]()
    certificate, key = authority.issue("receiver", "127.0.0.1")
    with receiver(tmp_path / "received", tls={"cert_file": str(certificate), "key_file": str(key)}) as collector:
        url = collector.url.replace("http:", "https:")
        with closing(Tracer(url, dropped.append)) as tracer:
            add(tracer)
        assert (collector.spans(), dropped) == ([], [2])
        assert "certificate verify failed" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
        with closing(Tracer(url, dropped.append)) as tracer:
            add(tracer)
        assert [span["name"] for span in collector.spans()] == ["CNI ADD", "queue"]
    assert dropped == [2]


def test_receiver_at_another_path_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dropped = list[int]()
    with receiver(tmp_path / "received") as collector, closing(Tracer(f"{collector.url}/x", dropped.append)) as tracer:
        add(tracer)
        wait_until(lambda: dropped == [2])
        assert collector.spans() == []
    assert f"{collector.url}/x does not take them: it answered 404 Not Found" in caplog.text


def test_collector_that_never_answers_delays_nothing(node: Node, own_pods: MakePod) -> None:
    """Calls succeed, and the agent ends in time. What was not delivered is counted."""
    node.stop_agent()
    with entered(node.netns):
        silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces?token=secret"
        node.start_agent(options=("--traces", url))
        began = time.monotonic()
        for _ in range(3):
            pod = own_pods()
            pod.add()
            pod.delete()
        assert time.monotonic() - began < 5
        time.sleep(1.2)  # the tracer waits for its answer
        began = time.monotonic()
        assert node.stop_agent() == 0
        assert time.monotonic() - began < 5
    assert "secret" not in node.log.read_text()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{directory}", "--traces '{directory}' cannot be used: Is a directory: name a file that root can write with --traces"),
        ("/proc/none/traces", "--traces '/proc/none/traces' cannot be used: "),
        ("ftp://host/", "the value is not a URL of HTTP"),
    ],
)
def test_unusable_target_is_refused(node: Node, target: str, message: str) -> None:
    node.stop_agent()
    options = ("--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir))
    directory = str(node.directory)
    assert os.path.isdir(directory)
    done = node.netns.run(str(BIN / "svc-agent"), "run", *options, "--traces", target.format(directory=directory), check=False)
    assert done.returncode in (1, 2)
    assert message.format(directory=directory) in done.stderr
