"""A plan for a large cluster: its time and memory, and that it writes nothing."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from harness.kube import running
from harness.large_cluster import LargeCluster
from harness.node import BIN
from harness.upgrade_site import UpgradeSite, old

pytestmark = [pytest.mark.server, pytest.mark.long]

NODES, PODS_OF_NODE = 1_000, 30
MAX_SECONDS, MAX_MIB = 60.0, 300.0


def test_plan_for_a_large_cluster(tmp_path: Path) -> None:
    (tmp_path / "kube").mkdir()
    with running(tmp_path / "kube", has_workloads=True) as kube:
        site = UpgradeSite(kube, tmp_path)
        site.install(old())
        LargeCluster(NODES, PODS_OF_NODE).fill_api(kube)
        before = revision(site)
        began = time.monotonic()
        process = subprocess.Popen([str(BIN / "svcctl"), *site.words("plan")], stdout=subprocess.PIPE)
        assert process.stdout
        text = process.stdout.read()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds, memory = time.monotonic() - began, usage.ru_maxrss / 1024
        assert process.returncode == 0, text
        assert revision(site) == before
    print(f"plan: {seconds:.1f} s, {memory:.0f} MiB")
    assert seconds <= MAX_SECONDS
    assert memory <= MAX_MIB


def revision(site: UpgradeSite) -> str:
    """Return the revision of the server's etcd."""
    return str(site.kube.call("GET", "/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"])
