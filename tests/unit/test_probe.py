"""One probe of a readiness gate: replies, redirects, certificates."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.certificates import Authority
from harness.gate_server import Behaviour, GateServer, dribbling, free_port, raw, resetting, serving, silent, status, to_itself
from svc.model.waits import TlsTrust, parse_gate
from svc.waits import probe
from svc.waits.probe import Probe, ProbeResult

Serve = Callable[..., GateServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda behaviour, **options: stack.enter_context(serving(behaviour, **options))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "mine")


def tls(authority: Authority, *hosts: str) -> ssl.SSLContext:
    certificate, key = authority.issue("gate", *hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def redirect(target: str, code: int = 302) -> Behaviour:
    return status(code, f"Location: {target}")


def result(url: str, *, verify: bool = True, ca_file: str = "") -> ProbeResult:
    return Probe(parse_gate(url), TlsTrust(verify, ca_file)).run()


@pytest.mark.parametrize("code", [200, 204, 299, 300, 304, 399])
def test_status_from_200_to_399_means_ready(serve: Serve, code: int) -> None:
    gate = serve(status(code))
    assert result(gate.url) == ProbeResult(True, f"status {code}")
    assert gate.connection_count == 1


@pytest.mark.parametrize(
    ("behaviour", "answer"),
    [
        (status(404), "status 404"),
        (status(503), "status 503"),
        (status(400), "status 400"),
        (silent, "timed out without an answer"),
        (dribbling, "timed out without an answer"),
        (resetting, "connection closed without an answer"),
        (raw(b""), "connection closed without an answer"),
        (raw(b"HTTP/1.1 200"), "connection closed without an answer"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not speak HTTP/1"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 2000), "does not speak HTTP/1"),
        (raw(b"x" * 100_000), "does not speak HTTP/1"),
    ],
    ids=["404", "503", "400", "silent", "dribbling", "resetting", "empty", "half", "other", "interim", "garbage"],
)
def test_any_other_answer_means_not_ready(
    serve: Serve, behaviour: Behaviour, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if behaviour in (silent, dribbling):
        monkeypatch.setattr(probe, "PROBE_SECONDS", 0.2)
    assert result(serve(behaviour).url) == ProbeResult(False, answer)


def test_server_that_is_not_reached_means_not_ready() -> None:
    assert result(f"http://127.0.0.1:{free_port()}/") == ProbeResult(False, "connection refused")
    assert result("http://nobody.invalid/").text.startswith("name does not resolve: ")


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_request_has_path_query_and_host_of_the_url(serve: Serve, host: str) -> None:
    gate = serve(raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), host=host)
    assert result(f"{gate.url}/a%20b?x=1&y=%2F#part").ready
    gate.behaviour = status(200)
    assert result(f"{gate.url}/a%20b?x=1&y=%2F#part").ready
    first, second, *_ = gate.heads[0].split("\r\n")
    assert first == "GET /ready/a%20b?x=1&y=%2F HTTP/1.1"
    assert second == f"Host: {gate.url.split('/')[2]}"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_followed(serve: Serve, code: int) -> None:
    page = serve(status(503))
    gate = serve(redirect(page.url, code))
    assert result(gate.url) == ProbeResult(False, f"status 503 (redirected to {page.url})")


def test_number_of_redirects_is_limited(serve: Serve) -> None:
    """A gate that redirects to itself gets eleven requests."""
    gate = serve(to_itself)
    assert result(gate.url) == ProbeResult(False, f"redirects more than 10 times (redirected to {gate.url})")
    assert gate.connection_count == 11


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("ftp://a/", "redirects to 'ftp://a/', which is not an http or https URL"),
        ("http://user:s3cr3t@127.0.0.1/?s3cr3t", "redirects to 'http://...@127.0.0.1/?...', which has credentials"),
        ("http://[::1", "redirects to 'http://[::1', which is not a URL"),
    ],
    ids=["scheme", "credentials", "malformed"],
)
def test_redirect_to_an_unusable_url_means_not_ready(serve: Serve, target: str, problem: str) -> None:
    found = result(serve(redirect(target)).url)
    assert problem in found.text
    assert "s3cr3t" not in found.text


def test_redirect_may_be_relative_or_lead_to_https_but_not_from_it(serve: Serve, authority: Authority) -> None:
    page = serve(status(200), tls=tls(authority, "127.0.0.1"))
    gate = serve(redirect(page.url))
    assert result(gate.url, ca_file=str(authority.root)).ready
    page.behaviour = redirect("../up?x=1")
    page.heads.clear()
    assert "redirects more than 10 times" in result(gate.url, ca_file=str(authority.root)).text
    assert page.heads[1].startswith("GET /up?x=1 HTTP/1.1")
    page.behaviour = redirect(f"{gate.url}?token=s3cr3t")
    assert result(page.url, ca_file=str(authority.root)).text == f"redirects from https to '{gate.url}?...'"


def test_certificate_is_verified(serve: Serve, authority: Authority) -> None:
    """An authority of the file must have issued it, for the host of the URL."""
    gate = serve(status(200), tls=tls(authority, "127.0.0.1"))
    assert result(gate.url).text.startswith("certificate is not trusted: ")
    assert result(gate.url, verify=False).ready
    assert result(gate.url, ca_file=str(authority.root)).ready
    other = serve(status(200), tls=tls(authority, "elsewhere.example"))
    assert result(other.url, ca_file=str(authority.root)).text.startswith("certificate is not trusted: ")


def test_server_without_tls_is_not_ready(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.2)
    assert not result(serve(silent).url.replace("http:", "https:")).ready


@pytest.mark.parametrize("content", [None, "", "nonsense"])
def test_error_names_an_unusable_file_of_authorities(
    serve: Serve, authority: Authority, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    found = result(serve(status(200), tls=tls(authority, "127.0.0.1")).url, ca_file=str(file))
    assert found.text.startswith(f"readiness_gates_ca_file '{file}' is of no use: ")
