"""The program svc-controllers in this process: election, controllers and end, on real servers."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.controllers import LEASE, Cluster, cluster
from harness.datastores import EtcdSite, session, set_ready
from harness.kube import Kube, Refused
from harness.polling import wait_until
from svc.controllers import program
from svc.controllers.configuration import Configuration
from svc.controllers.configuration_merge import Overrides
from svc.controllers.copies.profiles import AccountProfiles
from svc.controllers.settings import Settings
from svc.datastore.orch.client import Client
from svc.model.controllers_configuration import COMPACTION
from svc.model.keys import ResourceKey
from svc.names import DEFAULT

pytestmark = pytest.mark.server


@pytest.fixture
def controllers(kube: Kube, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(kube, tmp_path, {}) as made:
        made.make_namespace("c-a")
        made.make_account("c-a", "web")
        yield made


@pytest.fixture
def site(etcd_site: EtcdSite) -> Iterator[EtcdSite]:
    """Return an etcd that is ready."""
    with session(etcd_site) as store:
        set_ready(store)
    yield etcd_site
    etcd_site.clear()


@pytest.fixture(autouse=True)
def _own_health_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTH_FILE", str(tmp_path / "health"))


def settings(site: EtcdSite, kind: str = "etcdv3", **fields: object) -> Settings:
    datastore = {"kind": kind, "etcd_endpoints": site.running.endpoints}
    overrides = Overrides({COMPACTION: "0", **fields})
    return Settings(("serviceaccount",), datastore, {}, Configuration(), overrides, os.environ["HEALTH_FILE"])


def holder(kube: Kube) -> str:
    try:
        return str(kube.call("GET", LEASE)["spec"].get("holderIdentity") or "")
    except Refused:
        return ""


@contextmanager
def ended_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Send SIGTERM to this process when the condition is true."""

    def watch() -> None:
        try:
            wait_until(condition)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


def has_copy(site: EtcdSite) -> bool:
    with session(site) as store:
        return store.find(ResourceKey("Profile", "ksa.c-a.web")) is not None


def test_program_copies_until_sigterm(controllers: Cluster, client: Client, site: EtcdSite) -> None:
    with ended_when(lambda: has_copy(site)):
        assert program.run(settings(site), DEFAULT, client) == 0
    assert holder(controllers.kube) == ""
    assert "spec" in controllers.kube.call("GET", LEASE)


def test_program_without_copies_takes_part_in_the_election(
    controllers: Cluster, client: Client, site: EtcdSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    datastore = {"kind": "orch", "kubeconfig": controllers.environment["KUBECONFIG"]}
    with ended_when(lambda: bool(holder(controllers.kube))):
        assert program.run(replace(settings(site), datastore=datastore), DEFAULT, client) == 0
    assert "controller serviceaccount is idle: policy agents read these objects" in caplog.text
    assert not has_copy(site)


def test_history_is_compacted(controllers: Cluster, client: Client, site: EtcdSite) -> None:
    first = site.running.put("/svc/test", "1")
    site.running.put("/svc/test", "2")
    with ended_when(lambda: not site.running.has_history(first)):
        assert program.run(settings(site, **{COMPACTION: "100ms"}), DEFAULT, client) == 0


def test_failures_of_the_election_are_reported(
    controllers: Cluster, client: Client, site: EtcdSite, proxy: ApiProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    proxy.arm(Order(Fate.ANSWERED, "^GET .*leases", status=403, times=1))
    with ended_when(lambda: has_copy(site)):
        assert program.run(settings(site), DEFAULT, client) == 0
    assert "the election is interrupted: GET" in caplog.text
    proxy.arm(Order(Fate.ANSWERED, "^PUT .*leases", status=403, times=100))
    with ended_when(lambda: "the election is interrupted: PUT" in caplog.text):
        assert program.run(settings(site), DEFAULT, client) == 0
    assert caplog.text.count("is interrupted: PUT") == 1


def test_failed_controller_ends_the_program(
    controllers: Cluster, client: Client, site: EtcdSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AccountProfiles, "key", lambda *_: 1 / 0)
    assert program.run(settings(site), DEFAULT, client) == 1
