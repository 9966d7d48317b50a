"""One command makes a fresh cluster run pods."""

import time

import pytest

from harness.fresh_cluster import FreshCluster
from harness.workloads import delete_pod, put_pod

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.slow]


def test_first_pod(fresh: FreshCluster) -> None:
    began = time.monotonic()
    fresh.apply("--pool", "10.244.0.0/16")
    put_pod(fresh.kube, "web")
    address = fresh.await_address("web")
    took = time.monotonic() - began
    print(f"first pod after {took:.1f} s")
    assert address.startswith("10.244.")
    fresh.await_svc("svc-node", "svc-controllers")
    print(f"all after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    fresh.restart()
    fresh.real.wait("updated", fresh.is_updated)
    print(f"updated after {time.monotonic() - began:.1f} s")
    delete_pod(fresh.kube, "web")
