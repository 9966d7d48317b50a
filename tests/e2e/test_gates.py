"""Readiness gates: an ADD continues when all gates are ready, and leaves nothing if they are not."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.certificates import Authority
from harness.gate_pods import LONG, SHORT, Serve, refused, servers
from harness.gate_server import Behaviour, free_port, raw, resetting, serving, silent, status
from harness.node import Called, Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import remains

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


@pytest.fixture
def serve(shared_node: Node) -> Iterator[Serve]:
    with servers(shared_node) as start:
        yield start


def tls(authority: Authority, *hosts: str) -> ssl.SSLContext:
    certificate, key = authority.issue("gate", *hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


# ready


@pytest.mark.parametrize("code", [200, 399])
def test_status_from_200_to_399_means_ready(pods: MakePod, serve: Serve, code: int) -> None:
    gate = serve(status(code))
    assert pods(readiness_gates=[gate.url]).add()["ips"]
    assert gate.connection_count == 1, "svc must send one request to a gate that is ready"


def redirect(target: str) -> Behaviour:
    return status(302, f"Location: {target}")


def test_redirects_are_followed(pods: MakePod, serve: Serve) -> None:
    page = serve(status(503))
    gate = serve(redirect(page.url))
    pod = pods(readiness_gates=[gate.url], **SHORT)
    assert f"{gate.url}: status 503 (redirected to {page.url})" in refused(pod)["details"]
    page.behaviour = status(200)
    pod.add()
    assert page.heads[-1].startswith("GET /ready HTTP/1.1")


def test_redirects_share_the_timeout_of_a_probe(pods: MakePod, serve: Serve) -> None:
    mute = serve(silent)
    gate = serve(redirect(f"{mute.url}?token=s3cr3t"))
    details = refused(pods(readiness_gates=[gate.url], readiness_gates_timeout_seconds=7))["details"]
    assert f"{gate.url}: timed out without an answer (redirected to {mute.url}?...)" in details


def test_url_may_have_a_host_name(pods: MakePod, serve: Serve) -> None:
    gate = serve(status(200))
    pods(readiness_gates=[gate.url.replace("127.0.0.1", "localhost")]).add()


def test_add_continues_when_a_gate_becomes_ready(pods: MakePod, serve: Serve, shared_node: Node) -> None:
    gate = serve(status(503))
    pod = pods(readiness_gates=[gate.url], **LONG)
    calling = pod.begin("ADD")
    wait_until(lambda: gate.connection_count > 2)
    assert not calling.is_over
    assert remains(shared_node) == [f"waiting row of {pod.container} eth0"], "svc must assign nothing before the gate is ready"
    gate.behaviour = status(200)
    assert calling.result().status == 0


def test_add_continues_when_the_server_of_a_gate_starts(pods: MakePod, serve: Serve, shared_node: Node) -> None:
    port, other = free_port(shared_node.netns), serve(status(503))
    urls = [f"http://127.0.0.1:{port}/", other.url]
    calling = pods(readiness_gates=urls, **LONG).begin("ADD")
    wait_until(lambda: other.connection_count > 1)
    serve(status(200), port=port)
    other.behaviour = status(200)
    assert calling.result().status == 0


def test_identical_add_does_not_wait_for_a_gate(pods: MakePod, serve: Serve) -> None:
    """The pod is already running, so nothing starts that depends on the gate."""
    gate = serve(status(200))
    pod = pods(readiness_gates=[gate.url], **SHORT)
    pod.add()
    gate.behaviour = status(503)
    assert pod.call("ADD").output == pod.result


def test_del_does_not_probe_a_gate(pods: MakePod, serve: Serve, shared_node: Node) -> None:
    gate = serve(status(200))
    pod = pods(readiness_gates=[gate.url])
    pod.add()
    before = gate.connection_count
    gate.behaviour = silent
    pod.delete()
    assert gate.connection_count == before
    assert remains(shared_node) == []


def test_ipam_plugin_waits_for_the_gates(pods: MakePod, serve: Serve, shared_node: Node) -> None:
    """The IPAM plugin assigns the address."""
    gate = serve(status(503))
    pod = pods(plugin="svc-ipam", readiness_gates=[gate.url], **SHORT)
    assert pod.failed("ADD").output["code"] == 115
    gate.behaviour = status(200)
    assert pod.add()["ips"]


# not ready


@pytest.mark.parametrize(
    ("behaviour", "answer"),
    [
        (status(503), "status 503"),
        (silent, "timed out without an answer"),
        (resetting, "connection closed without an answer"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not speak HTTP/1"),
    ],
    ids=["503", "silent", "resetting", "other"],
)
def test_add_fails_if_a_gate_is_not_ready(pods: MakePod, serve: Serve, behaviour: Behaviour, answer: str) -> None:
    """The error comes at the timeout and has the last answer of the gate. DEL and a second ADD work."""
    gate = serve(behaviour)
    pod = pods(readiness_gates=[gate.url], **SHORT)
    output = refused(pod)
    assert output["msg"] == "1 of 1 readiness gates are not ready after 1 s"
    assert f"{gate.url}: {answer}" in output["details"]
    pod.delete()
    gate.behaviour = status(200)
    pod.add()


def test_error_lists_each_gate_with_its_last_answer(pods: MakePod, serve: Serve) -> None:
    ready, failing, mute = serve(status(200)), serve(status(500)), serve(silent)
    output = refused(pods(readiness_gates=[ready.url, failing.url, mute.url], **SHORT))
    assert output["msg"] == "2 of 3 readiness gates are not ready after 1 s"
    for gate, answer in ((ready, "status 200"), (failing, "status 500"), (mute, "timed out without an answer")):
        assert f"{gate.url}: {answer}" in output["details"]


def test_query_of_a_gate_is_redacted(pods: MakePod, serve: Serve) -> None:
    """The query may have a secret."""
    gate = serve(status(500))
    pod = pods(readiness_gates=[f"{gate.url}?token=s3cr3t"], log_level="DEBUG", **SHORT)
    called = pod.failed("ADD")
    assert f"{gate.url}?...: status 500" in called.output["details"]
    assert "s3cr3t" not in f"{called.stdout!r}{called.stderr}"
    assert "token=s3cr3t" in gate.heads[0]


def test_gates_are_probed_in_parallel(pods: MakePod, serve: Serve) -> None:
    """A silent gate does not delay the probes of the others."""
    mute, failing = serve(silent), serve(status(503))
    calling = pods(readiness_gates=[mute.url, failing.url], **LONG).begin("ADD")
    wait_until(lambda: failing.connection_count > 2)
    mute.behaviour = failing.behaviour = status(200)
    calling.kill()


# TLS


def test_certificate_of_an_unknown_authority_is_not_trusted(pods: MakePod, serve: Serve, tmp_path: Path) -> None:
    gate = serve(status(200), tls=tls(Authority(tmp_path, "unknown"), "127.0.0.1"))
    pod = pods(readiness_gates=[gate.url], readiness_gates_timeout_seconds=3)  # a busy machine takes a second for a handshake
    assert f"{gate.url}: certificate is not trusted: " in refused(pod)["details"]
    pod.config |= {"readiness_gates_tls_verify": False}
    pod.add()


def test_authority_of_a_file_is_trusted(pods: MakePod, serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "mine")
    gate = serve(status(200), tls=tls(authority, "127.0.0.1"))
    pods(readiness_gates=[gate.url], readiness_gates_ca_file=str(authority.root)).add()


@pytest.mark.parametrize("content", [None, "", "nonsense"])
def test_error_names_an_unusable_file_of_authorities(pods: MakePod, serve: Serve, tmp_path: Path, content: str | None) -> None:
    """The gate itself is ready."""
    gate = serve(status(200), tls=tls(Authority(tmp_path, "mine"), "127.0.0.1"))
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    details = refused(pods(readiness_gates=[gate.url], readiness_gates_ca_file=str(file), **SHORT))["details"]
    assert f"{gate.url}: readiness_gates_ca_file '{file}' is of no use: " in details


# invalid input


@pytest.mark.parametrize(
    "url",
    ["", "ready", "ftp://a/", "http://", "http:///x", "http://a:0/", "http://a:99999/", "http://a:x/", "http://[::1/", "http://[1.2]/",
     "http://a b/", "http://a/\n", "http://user:word@a/", "http://a..b/", "http://é/", "http://" + 64 * "a" + "/"],
)  # fmt: skip
def test_malformed_url_is_a_field_error(pods: MakePod, url: str) -> None:
    """svc reports it together with all other field errors, before it sends a request."""
    output = pods(readiness_gates=["http://127.0.0.1:1/", url], mtu=1).failed("ADD").output
    assert output["code"] == 7
    assert "2 errors" in output["msg"]
    assert "readiness_gates[1] = " in output["details"]
    assert "write http://HOST:PORT/PATH" in output["details"]
    assert "mtu = 1 is out of range" in output["details"]


@pytest.mark.parametrize("seconds", [-1, 0, 3601, 2**40])
def test_timeout_that_is_out_of_range_is_refused(pods: MakePod, seconds: int) -> None:
    output = pods(readiness_gates=["http://a/"], readiness_gates_timeout_seconds=seconds).failed("ADD").output
    assert f"readiness_gates_timeout_seconds = {seconds} is out of range" in output["msg"]


def test_too_many_gates_are_refused(pods: MakePod) -> None:
    output = pods(readiness_gates=[f"http://a/{n}" for n in range(33)]).failed("ADD").output
    assert "has 33 URLs" in output["msg"]


def test_proxy_variables_of_the_environment_are_ignored(own_pods: MakePod, node: Node) -> None:
    node.stop_agent()
    with serving(status(200), inside=node.netns) as gate, serving(status(200), inside=node.netns) as proxy:
        node.start_agent(http_proxy=proxy.url, HTTP_PROXY=proxy.url, all_proxy=proxy.url, ALL_PROXY=proxy.url)
        own_pods(readiness_gates=[gate.url]).add()
        assert (gate.connection_count, proxy.connection_count) == (1, 0)


def test_log_has_the_duration_of_the_gates_phase(pods: MakePod, serve: Serve) -> None:
    called: Called = pods(readiness_gates=[serve(status(200)).url]).call("ADD")
    assert " gates=" in called.stderr
    assert " policy=" not in called.stderr
