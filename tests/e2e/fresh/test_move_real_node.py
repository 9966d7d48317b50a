"""The datastore of a cluster with a real node moves there and back, while pods ping each other."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.fresh_cluster import IMAGE, FreshCluster
from harness.fresh_etcd import FreshEtcd
from harness.kubelet_node import CONF_DIR
from harness.node import netconf
from harness.pinging_pods import PingingPods
from harness.workloads import delete_pod, put_pod, read_pod
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

Json = dict[str, Any]

POOL = "10.244.0.0/16"
LOCKED, UNLOCKED = "lock-source done", "switch-over done"  # what svcctl says
MANIFESTS = ("manifests", "--image", IMAGE, "--policy-api", "policy/v1beta1")


class Mover:
    """svcctl of an administrator on the node, and the files that it needs for a move."""

    def __init__(self, fresh: FreshCluster, etcd: FreshEtcd, folder: Path) -> None:
        self._fresh, self._folder = fresh, folder
        fresh.svcctl("crd", "apply", "--kubeconfig", str(fresh.kubeconfig))
        name = json.loads(fresh.real.host("cat", str(CONF_DIR / DEFAULT.conflist)).stdout)["name"]
        orch = {"datastore_type": DEFAULT.orch_datastore, DEFAULT.orch_section: {"kubeconfig": str(fresh.kubeconfig)}}
        self._describe("etcd", netconf(name=name, **etcd.config), *etcd.options)
        self._describe("kube", netconf(name=name, **orch), "--pool", POOL)

    def _describe(self, datastore: str, config: Json, *options: str) -> None:
        """Write the network configuration and the manifest with a datastore."""
        (self._folder / f"{datastore}.json").write_text(json.dumps(config))
        (self._folder / f"{datastore}.yaml").write_text(self._fresh.svcctl(*MANIFESTS, *options))

    def move(self, source: str, target: str, when_locked: Callable[[], None]) -> str:
        """Move, and do something when the source is locked. Return how long it took, in words."""
        begin, ends = time.monotonic(), dict[str, float]()
        for line in self._fresh.svcctl_lines(*self._words("apply", source, target)):
            ends[line] = time.monotonic() - begin
            if line == LOCKED:
                when_locked()
        whole, locked = time.monotonic() - begin, ends[UNLOCKED] - ends[LOCKED]
        return f"{source} to {target}: {whole:.1f} s, locked for {locked:.1f} s"

    def require_end(self, source: str, target: str) -> None:
        """Require that the move has ended, and that nothing is left to do."""
        self._fresh.svcctl(*self._words("verify", source, target), on_node=True)
        assert self._fresh.svcctl(*self._words("apply", source, target), on_node=True) == "nothing to do\n"

    def _words(self, verb: str, source: str, target: str) -> list[str]:
        files = ("--source", f"{source}.json", "--target", f"{target}.json", "--manifest", f"{target}.yaml")
        given = [each if each.startswith("--") else str(self._folder / each) for each in files]
        state = ("--state-dir", str(self._folder / "state"), "upgrade", verb)
        return [*state, "--procedure", "datastore", "--kubeconfig", str(self._fresh.kubeconfig), *given]


def test_no_ping_is_lost(fresh: FreshCluster, fresh_etcd: FreshEtcd, tmp_path: Path) -> None:
    """Pods that are started or deleted during the move wait for its end. Those of before keep their addresses."""
    fresh_etcd.install(POOL)
    pings = PingingPods(fresh)
    fresh.await_svc("svc-node", "svc-controllers")
    mover = Mover(fresh, fresh_etcd, tmp_path)
    addresses = {name: fresh.await_address(name) for name in ("first", *PingingPods.NAMES)}
    for source, target in (("etcd", "kube"), ("kube", "etcd")):
        leaves, comes = f"leaves-{source}", f"comes-{target}"
        put_pod(fresh.kube, leaves)
        fresh.await_address(leaves)

        def exchange(leaves: str = leaves, comes: str = comes) -> None:
            put_pod(fresh.kube, comes)
            delete_pod(fresh.kube, leaves)

        took = mover.move(source, target, exchange)
        print(f"\n{took}; {pings.require_none_lost()} pings, 0 lost")
        assert fresh.await_address(comes) not in addresses.values()
        fresh.real.wait(f"{leaves} has ended", lambda leaves=leaves: read_pod(fresh.kube, leaves) is None)  # type: ignore[misc]
        mover.require_end(source, target)
    assert {name: fresh.await_address(name) for name in addresses} == addresses
    pings.require_none_lost()
