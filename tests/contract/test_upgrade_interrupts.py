"""Ctrl-C in an upgrade: reads are broken off, and a write that is sent ends first."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube
from harness.polling import wait_until
from harness.upgrade_fixtures import kubelets, server_with
from harness.upgrade_site import SYSTEM, UpgradeSite, old, running_site
from svc.ctl.interrupts import INTERRUPTED

__all__ = ["kubelets"]  # a fixture

pytestmark = pytest.mark.server
server = server_with("daemonset")

MAIN: Final = "from svc.ctl.main import main; main(prog_name='svcctl')"
LATE_SECONDS: Final = 3.0
SECONDS: Final = 2.0
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/svc-upgrade"


@pytest.fixture
def proxy(server: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(server) as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path) -> Iterator[UpgradeSite]:
    for made in running_site(server, tmp_path):
        made.install(old())
        yield made


def interrupted(site: UpgradeSite, proxy: ApiProxy, verb: str, order: Order) -> float:
    """Send Ctrl-C while a request is answered late. Return the seconds until the end."""
    proxy.arm(order)
    words = site.words(verb, server=proxy.url)
    with subprocess.Popen([sys.executable, "-c", MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: not order.times)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=30)
        seconds = time.monotonic() - began
    proxy.disarm()
    assert (process.returncode, b"Traceback" in told) == (INTERRUPTED, False), told
    assert told.endswith(b"interrupted\n")
    return seconds


@pytest.mark.parametrize("verb", ["plan", "apply", "verify"])
def test_read_before_the_first_write_is_broken_off(site: UpgradeSite, proxy: ApiProxy, verb: str) -> None:
    before = site.everything()
    order = Order(Fate.LATE, r"GET .*/daemonsets/svc-node", seconds=2 * LATE_SECONDS)
    assert interrupted(site, proxy, verb, order) < SECONDS
    assert site.everything() == before


def test_write_that_is_sent_ends_first(site: UpgradeSite, proxy: ApiProxy) -> None:
    """Its outcome is known, the Lease is free, and the next run goes on."""
    seconds = interrupted(site, proxy, "apply", Order(Fate.LATE, rf"POST .*/{SYSTEM}/secrets", seconds=LATE_SECONDS))
    assert LATE_SECONDS - SECONDS < seconds < LATE_SECONDS + SECONDS
    assert [name for name in site.everything() if name.startswith("secrets/svc-upgrade")]
    assert not site.kube.call("GET", LEASE)["spec"]["holderIdentity"]
    site.succeeds("apply")
    site.succeeds("undo")


def test_read_after_a_write_is_broken_off(site: UpgradeSite, proxy: ApiProxy) -> None:
    """The run is recorded as far as it came."""
    site.succeeds("apply")
    order = Order(Fate.LATE, rf"GET .*/{SYSTEM}/configmaps/svc-settings", seconds=2 * LATE_SECONDS)
    assert interrupted(site, proxy, "undo", order) < SECONDS
    assert not site.kube.call("GET", LEASE)["spec"]["holderIdentity"]
    site.succeeds("undo")
