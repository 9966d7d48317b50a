"""The results that STATUS uses: only a limited number of the last ones is kept."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from svc.attach import health as module
from svc.attach.health import MAX_REMEMBERED, Dependency, Health, Probe
from svc.call_trace import CallTrace
from svc.datastore.api import Forbidden, NoSpace, StoreError
from svc.model.errors import PeerError

FAILURE = PeerError("the plugin refuses")


class Server:
    """A server that refuses probes, and answers none of them inside `silenced`."""

    def __init__(self, number: int) -> None:
        self._silent = False
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self.dependency = Dependency(number, f"server {number}", "repair it", self._look)

    def _look(self, _: Probe) -> None:
        self._threads.append(threading.current_thread())
        if self._silent:
            self._end.wait()
        raise PeerError("broken")

    def probe(self, health: Health) -> None:
        """Probe the server, and return when the result is stored."""
        health.begin(self.dependency)
        self._join()

    @contextmanager
    def silenced(self) -> Iterator[None]:
        self._silent = True
        try:
            yield
        finally:
            self._end.set()
            self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()


def is_ready(health: Health, network: str) -> bool:
    try:
        health.require([], network, CallTrace("test"), may_lack_addresses=True)
    except PeerError:
        return False
    return True


def test_failures_of_the_last_networks_are_kept() -> None:
    health = Health()
    for number in range(MAX_REMEMBERED + 1):
        health.record(f"net-{number}", FAILURE)
    assert is_ready(health, "net-0")
    assert not is_ready(health, "net-1")
    assert not is_ready(health, f"net-{MAX_REMEMBERED}")


def test_newer_probes_do_not_supersede_a_missing_right() -> None:
    """An etcd user may read all keys and write only some of them."""
    health = Health()
    for failure, ready in ((StoreError("no answer"), True), (Forbidden("permission denied"), False)):
        health.record("net", failure)
        assert is_ready(health, "net") == ready
    health.record("net", None)
    assert is_ready(health, "net")


def test_full_disk_is_reported_until_a_probe_succeeds() -> None:
    """The agent probes the files every 30 s only."""
    health = Health()
    free = Dependency("journal", "the journal", "free space", lambda _: None)
    health.require([free], "net", CallTrace("test"), may_lack_addresses=False)
    health.record("net", NoSpace("the disk is full"))
    assert [str(last.failure) for last in health.failures() if last.is_current] == ["the disk is full"]
    health.require([free], "net", CallTrace("test"), may_lack_addresses=False)
    assert [last.is_current for last in health.failures()] == [False]


def test_repeated_failure_of_a_network_counts_as_new() -> None:
    health = Health()
    health.record("first", FAILURE)
    for number in range(MAX_REMEMBERED - 1):
        health.record(f"net-{number}", FAILURE)
    health.record("first", FAILURE)
    health.record("last", FAILURE)
    assert not is_ready(health, "first")
    assert is_ready(health, "net-0")


def test_results_of_the_last_probes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)
    health, servers = Health(), [Server(number) for number in range(MAX_REMEMBERED + 1)]
    for server in servers:
        server.probe(health)
    for server, cause in ((servers[1], "broken"), (servers[-1], "broken"), (servers[0], "not known to answer")):
        with server.silenced(), pytest.raises(PeerError, match=cause):
            health.require([server.dependency], "net", CallTrace("test"), may_lack_addresses=False)


def test_success_counts_while_other_adds_are_in_flight() -> None:
    """A burst of ADDs keeps probes from the interpreter, and its ADDs meet the same dependencies."""
    health, server = Health(), Server(1)
    with health.adding("net"):
        with health.adding("net"):
            pass
        health.require([server.dependency], "net", CallTrace("test"), may_lack_addresses=False)
        with pytest.raises(PeerError, match="broken"):
            health.require([server.dependency], "other", CallTrace("test"), may_lack_addresses=False)
    with pytest.raises(PeerError, match="broken"):
        health.require([server.dependency], "net", CallTrace("test"), may_lack_addresses=False)


def test_failure_ends_the_proof_of_an_earlier_success() -> None:
    health, server = Health(), Server(1)
    with health.adding("net"):
        with health.adding("net"):
            pass
        with pytest.raises(ZeroDivisionError), health.adding("net"):
            raise ZeroDivisionError
        with pytest.raises(PeerError, match="broken"):
            health.require([server.dependency], "net", CallTrace("test"), may_lack_addresses=False)


def test_proof_of_a_success_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVIDENCE_SECONDS", 0.0)
    health, server = Health(), Server(1)
    with health.adding("net"):
        with health.adding("net"):
            pass
        with pytest.raises(PeerError, match="broken"):
            health.require([server.dependency], "net", CallTrace("test"), may_lack_addresses=False)


def current(health: Health) -> list[bool]:
    return [last.is_current for last in health.failures()]


@pytest.mark.parametrize(
    ("failure", "may_lack_addresses", "stays"),
    [
        (FAILURE, False, False),
        (FAILURE, True, True),  # no probe looks for an address of another plugin
        (StoreError("no answer"), True, False),
        (Forbidden("permission denied"), False, True),
    ],
)
def test_newer_probes_end_the_failure_of_an_add(failure: PeerError, may_lack_addresses: bool, stays: bool) -> None:
    """As for STATUS: a failure without newer probes of all dependencies stays current."""
    health, servers = Health(), [Server(1), Server(2)]
    dependencies = [server.dependency for server in servers]
    for server in servers:
        server.probe(health)
    health.record("net", failure)
    assert current(health) == [True]
    with pytest.raises(PeerError):
        health.require(dependencies[:1], "net", CallTrace("test"), may_lack_addresses=may_lack_addresses)
    health.require_later(dependencies, "net", may_lack_addresses=may_lack_addresses)
    for server in servers:
        server.probe(health)
    assert current(health) == [stays]


def test_failure_of_an_add_is_current_for_a_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe of the network may be known."""
    health = Health()
    health.record("net", FAILURE)
    assert current(health) == [True]
    monkeypatch.setattr(module, "MEMORY_SECONDS", 0.0)
    assert current(health) == [False]


class Sound:
    """A server that answers every probe, until it is `broken`."""

    def __init__(self) -> None:
        self.probes = 0
        self.broken = False
        self.dependency = Dependency("sound", "the server", "repair it", self._look)

    def _look(self, _: Probe) -> None:
        self.probes += 1
        if self.broken:
            raise PeerError("broken")

    def is_ready(self, health: Health, network: str = "net") -> bool:
        try:
            health.require([self.dependency], network, CallTrace("test"), may_lack_addresses=False)
        except PeerError:
            return False
        return True


def test_success_is_not_repeated_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other networks share it, as they share the probe."""
    health, server = Health(), Sound()
    assert [server.is_ready(health, network) for network in ("net", "net", "other")] == [True] * 3
    assert server.probes == 1
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    server.broken = True
    assert not server.is_ready(health)


def test_failure_is_probed_again_at_once() -> None:
    health, server = Health(), Sound()
    server.broken = True
    assert not server.is_ready(health)
    server.broken = False
    assert server.is_ready(health)
    assert server.probes == 2


def test_success_before_a_failed_add_does_not_count() -> None:
    health, server = Health(), Sound()
    assert server.is_ready(health)
    health.record("net", StoreError("refused"))
    server.broken = True
    assert server.is_ready(health, "other")
    assert not server.is_ready(health)
    assert server.probes == 2


def test_success_before_an_add_does_not_count() -> None:
    """The ADD may have taken the last address."""
    health, server = Health(), Sound()
    assert server.is_ready(health)
    with health.adding("net"):
        pass
    server.broken = True
    assert not server.is_ready(health)
