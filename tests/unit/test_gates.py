"""The monitor of readiness gates: URLs, back-off, and the number of probes."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from harness.gate_server import GateServer, free_port, resetting, serving, silent, status
from harness.polling import wait_until
from svc.model.waits import Gate, GateSettings, parse_gate
from svc.waits.gates import GateMonitor, GatesWait
from svc.waits.wait import WaitOutcome

TIMEOUT_SECONDS = 20.0


@pytest.fixture
def gates() -> Iterator[GateMonitor]:
    with closing(GateMonitor()) as gates:
        yield gates


def begin(gates: GateMonitor, *urls: str, seconds: float = TIMEOUT_SECONDS) -> GatesWait:
    return gates.wait(GateSettings(urls, seconds), time.monotonic() + seconds)


def threads() -> int:
    return sum(thread.name == "gate" for thread in threading.enumerate())


# URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a", (False, "a", 80, "a", "/")),
        ("https://a", (True, "a", 443, "a", "/")),
        ("HTTP://A.b:8080/x?y#z", (False, "a.b", 8080, "A.b:8080", "/x?y")),
        ("http://[::1]:9/", (False, "::1", 9, "[::1]:9", "/")),
        ("http://[fe80::1%25eth0]/", (False, "fe80::1%eth0", 80, "[fe80::1%25eth0]", "/")),
        ("http://10.0.0.1?x", (False, "10.0.0.1", 80, "10.0.0.1", "/?x")),
        ("http://host_name./", (False, "host_name.", 80, "host_name.", "/")),
    ],
)
def test_url_is_parsed(url: str, expected: tuple[bool, str, int, str, str]) -> None:
    assert parse_gate(url) == Gate(url, *expected)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "is not an http or https URL"),
        ("a:80", "is not an http or https URL"),
        ("http://", "has no host"),
        ("http://:80", "has no host"),
        ("http://a:0", "has port 0"),
        ("http://a:65536", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://a\t/", "has characters that a URL cannot have"),
        ("http://a/ü", "has characters that a URL cannot have"),
        ("http://name:secret@a", "has credentials"),
        ("http://a..b", "has no host name or address that could exist"),
        ("http://" + ".".join(["a" * 63] * 4), "has no host name or address that could exist"),
        ("http://a/" + "x" * 2048, "has 2057 characters"),
    ],
)
def test_invalid_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_gate(url)


# probes


def test_ready_gate_is_probed_once(gates: GateMonitor) -> None:
    with serving(status(200)) as server:
        wait = begin(gates, server.url)
        wait.join()
        assert wait.outcome is WaitOutcome.READY
        assert wait.answers[server.url].text == "status 200"
        wait_until(lambda: threads() == 0)
        assert server.connection_count == 1


def test_gate_is_probed_until_it_is_ready(gates: GateMonitor) -> None:
    with serving(status(500)) as server:
        wait = begin(gates, server.url)
        wait_until(lambda: server.connection_count >= 3)
        assert wait.outcome is None
        server.behaviour = status(200)
        wait.join()
        assert wait.outcome is WaitOutcome.READY


def test_concurrent_waits_share_the_probes(gates: GateMonitor) -> None:
    """A wait that begins during a probe gets the result of the next one."""
    with serving(status(500)) as server:
        waits = [begin(gates, server.url) for _ in range(500)]
        wait_until(lambda: server.connection_count >= 3)
        assert threads() == 1
        server.behaviour = status(200)
        before = server.connection_count
        for wait in waits:
            wait.join()
        assert {wait.outcome for wait in waits} == {WaitOutcome.READY}
        assert server.connection_count <= before + 2


def test_probe_that_began_before_a_wait_does_not_end_it(gates: GateMonitor) -> None:
    """The service may have stopped after the probe began."""
    release, answered = threading.Event(), threading.Event()

    def first_ready_then_not_ready(server: GateServer, connection: object) -> None:
        if server.connection_count == 1:
            release.wait(TIMEOUT_SECONDS)
            status(200)(server, connection)  # type: ignore[arg-type]
            answered.set()
        else:
            status(500)(server, connection)  # type: ignore[arg-type]

    with serving(first_ready_then_not_ready) as server:
        early = begin(gates, server.url)
        wait_until(lambda: server.connection_count == 1)
        late = begin(gates, server.url)
        release.set()
        early.join()
        assert early.outcome is WaitOutcome.READY
        wait_until(lambda: server.connection_count >= 3)
        assert late.outcome is None
        late.end(WaitOutcome.DISCONNECTED)


def test_new_wait_does_not_wait_for_the_backoff_of_another(gates: GateMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.retry.Backoff.next", lambda _: TIMEOUT_SECONDS * 10)
    with serving(status(500)) as server:
        begin(gates, server.url)
        wait_until(lambda: server.connection_count == 1)
        second = begin(gates, server.url)
        wait_until(lambda: server.connection_count >= 2)
        server.behaviour = status(200)
        begin(gates, server.url).join()
        assert second.outcome is WaitOutcome.READY


def test_wait_that_ends_leaves_no_thread(gates: GateMonitor) -> None:
    """Its probe is in progress, and the server does not reply."""
    with serving(silent) as server:
        wait = begin(gates, server.url)
        wait_until(lambda: server.connection_count == 1)
        wait.end(WaitOutcome.DISCONNECTED)
        wait_until(lambda: threads() == 0)


def test_gate_without_waits_is_probed_again_by_a_new_wait(gates: GateMonitor) -> None:
    with serving(silent) as server:
        begin(gates, server.url).end(WaitOutcome.DISCONNECTED)
        server.behaviour = status(200)
        wait = begin(gates, server.url)
        wait.join()
        assert wait.outcome is WaitOutcome.READY


def test_closing_ends_all_waits() -> None:
    gates = GateMonitor()
    with serving(silent) as server, serving(resetting) as other:
        waits = [begin(gates, server.url, other.url) for _ in range(3)]
        gates.close()
        assert {wait.outcome for wait in waits} == {WaitOutcome.SHUTDOWN}
        wait_until(lambda: threads() == 0)


def test_result_of_each_gate_is_kept(gates: GateMonitor) -> None:
    refusing = f"http://127.0.0.1:{free_port()}/"
    with serving(status(302)) as server:
        wait = begin(gates, server.url, refusing, seconds=0.5)
        wait.join()
        assert wait.outcome is WaitOutcome.TIMEOUT
        assert {url: (answer.ready, answer.text) for url, answer in wait.answers.items()} == {
            server.url: (True, "status 302"),
            refusing: (False, "connection refused"),
        }


def test_gate_with_two_addresses_needs_one_server(gates: GateMonitor) -> None:
    """`localhost` is also ::1, where no server listens."""
    with serving(status(200)) as server:
        wait = begin(gates, server.url.replace("127.0.0.1", "localhost"))
        wait.join()
        assert wait.outcome is WaitOutcome.READY


def test_failed_start_of_the_thread_leaves_no_wait(gates: GateMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            begin(gates, url)
    begin(gates, url).end(WaitOutcome.DISCONNECTED)
    wait_until(lambda: threads() == 0)


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
