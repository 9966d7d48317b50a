"""Readiness gates (rule R6) and the wait for policy (rule R7), on each datastore."""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.certificates import Authority
from harness.cluster_node import ClusterNode, audit
from harness.gate_server import GateServer, serving, status
from harness.pod import Pod
from harness.polling import wait_until
from harness.spec_rows import field, statement
from svc.attach.record import ADDED

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Serve = Callable[..., GateServer]

FILE = "k8s default%2Fweb-0 eth0"
GATE_CLOSED = 115
EMBEDDED = pytest.mark.parametrize(
    "site", ["embedded"], indirect=True, scope="module"
)  # the wait for gates precedes any use of the datastore


@pytest.fixture
def serve(cluster_node: ClusterNode) -> Iterator[Serve]:
    """Return a function that starts servers on the node's loopback address."""
    with ExitStack() as stack:
        yield lambda code, **options: stack.enter_context(serving(status(code), inside=cluster_node.netns, **options))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "endpoint-status"
    path.mkdir()
    return path


def is_attached(node: ClusterNode) -> bool:
    return [record.state for record in audit([node]).records] == [ADDED]


@field(
    "readiness_gates",
    "svc probes them in parallel, at once and then every 100 ms to 5 s. It uses no proxy and follows up to 10 redirects.",
    choice="At most 32 of them. They are probed before an address is assigned, and not for an existing attachment.",
)
@statement(
    "4",
    "R6 all ready",
    "An ADD continues when every gate is ready.",
    "The request is GET, and a status from 200 to 399 means ready. On timeout the error lists the last reply of each gate.",
    choice="The specification does not define method and reply: svc uses those of Kubernetes probes.",
)
def test_add_waits_for_all_gates(make: MakePod, cluster_node: ClusterNode, serve: Serve) -> None:
    opened, closed = serve(204), serve(503)
    pod = make(readiness_gates=[opened.url, closed.url])
    calling = pod.begin("ADD")
    wait_until(lambda: closed.connection_count > 1)
    assert not calling.is_over
    assert audit([cluster_node]).allocations == {}
    closed.behaviour = status(302)
    called = calling.result()
    assert (called.status, opened.connection_count) == (0, 1)
    error = make("web-1", readiness_gates=["localhost:80"]).failed("ADD").output
    assert (error["code"], "readiness_gates[0]" in error["msg"]) == (7, True)


@EMBEDDED
@field(
    "readiness_gates_timeout_seconds",
    "The time for all gates together. On timeout the ADD fails with code 115 and keeps no state.",
)
def test_gates_have_a_timeout(make: MakePod, serve: Serve) -> None:
    gate = serve(503)
    error = make(readiness_gates=[gate.url], readiness_gates_timeout_seconds=1).failed("ADD").output
    assert error["code"] == GATE_CLOSED
    assert f"{gate.url}: status 503" in error["details"]


@EMBEDDED
@field("readiness_gates_tls_verify", "Certificates of gates are verified, unless this is false.")
@field("readiness_gates_ca_file", "A PEM file, which each ADD with an `https` gate reads.")
@statement(
    "5",
    "5.4",
    "The specification does not say how svc identifies itself to gates.",
    "svc sends no credential to a gate, and refuses a URL with one. The query of a URL (`?...`) is in "
    "no error and no log. The gates of `https` URLs must present a trusted certificate.",
    choice="svc checks the certificates of gates, because another server could answer in their place.",
)
def test_certificates_of_gates_are_verified(make: MakePod, serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("gate", "127.0.0.1"))
    gate = serve(200, tls=context)
    pod = make(readiness_gates=[gate.url], readiness_gates_timeout_seconds=1)
    called = pod.failed("ADD", readiness_gates=[f"{gate.url}?key=secret"], log_level="DEBUG")
    assert f"{gate.url}?...: certificate is not trusted" in called.output["details"]
    assert "secret" not in called.output["details"] + called.stderr
    pod.add(readiness_gates_ca_file=str(authority.root))
    pod.delete()
    pod.add(readiness_gates_tls_verify=False)
    assert all("authorization" not in head.lower() for head in gate.heads)
    error = make("web-1", readiness_gates=["https://user:secret@127.0.0.1/"]).failed("ADD").output
    assert (error["code"], "secret" in str(error)) == (7, False)


@field(
    "policy_setup_timeout_seconds",
    "Off without it and with 0; a negative number is refused. All waiting pods share one watch of the directory.",
    choice="Only pods wait, at the ADD of each interface that has an endpoint.",
)
@statement(
    "4",
    "R7 held",
    "A new pod waits until its policy is programmed.",
    "The ADD returns when the directory contains the file of the pod's endpoint. Interfaces and endpoint exist before.",
    choice="A file with other addresses belongs to a previous sandbox and is ignored. svc reads nothing else in it.",
)
def test_pod_waits_until_its_policy_is_set_up(make: MakePod, cluster_node: ClusterNode, directory: Path) -> None:
    pod = make(policy_setup_timeout_seconds=60, endpoint_status_dir=str(directory))
    calling = pod.begin("ADD")
    wait_until(lambda: is_attached(cluster_node))
    (directory / "k8s default%2Fanother eth0").touch()
    assert not calling.is_over
    (directory / FILE).touch()
    called = calling.result()
    assert (called.status, "starts without" in called.stderr) == (0, False)
    error = make("web-1", policy_setup_timeout_seconds=-1).failed("ADD").output
    assert "policy_setup_timeout_seconds = -1" in error["msg"]


@statement(
    "4",
    "R7 elapsed",
    "A new pod starts at its timeout if its policy is not programmed before.",
    "The ADD then succeeds with a log line of level WARNING.",
    choice="The time begins after all other work. The executable waits as long as needed, but the runtime may end the call.",
)
@pytest.mark.parametrize("named", [True, False], ids=["named", "default"])
def test_pod_starts_at_the_timeout(make: MakePod, directory: Path, named: bool) -> None:
    config = {"endpoint_status_dir": str(directory)} if named else {}
    called = make(policy_setup_timeout_seconds=1, **config).call("ADD")
    assert called.status == 0
    assert "WARNING" in called.stderr
    assert "starts without" in called.stderr
    assert f"{directory if named else '/var/run/svc/endpoint-status'}/{FILE}" in called.stderr


@field(
    "endpoint_status_dir",
    "The program that enforces policy writes a file there for each endpoint that it has set up. Its name is orchestrator,"
    " namespace and pod, and interface, each escaped as in a URL, with a space between them.",
    choice="The directory need not exist when an ADD begins to wait, and may be replaced during the wait.",
)
@statement(
    "4",
    "R7 writer",
    "The agent's option `endpointStatusPathPrefix` is the directory of writes, and `endpoint_status_dir` that of reads.",
    "The plugin only reads there. The option belongs to the program that enforces policy.",
)
def test_status_directory_is_only_read(make: MakePod, cluster_node: ClusterNode, tmp_path: Path) -> None:
    later = tmp_path / "prefix" / "endpoint-status"
    pod = make(policy_setup_timeout_seconds=60, endpoint_status_dir=str(later))
    calling = pod.begin("ADD")
    wait_until(lambda: is_attached(cluster_node))
    assert not later.exists()
    later.mkdir(parents=True)
    (later / FILE).touch()
    assert calling.result().status == 0
    pod.delete()
    assert os.listdir(later) == [FILE]
