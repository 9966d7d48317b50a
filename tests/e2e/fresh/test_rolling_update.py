"""A rolling update of the DaemonSet of a real node, while the runtime makes calls."""

import time

import pytest

from harness.fresh_cluster import FreshCluster
from harness.rolling_churn import Churn
from harness.update_phases import phases
from harness.workloads import delete_pod, events, put_pod, read_pod
from svc.attach.journal_reader import read_rows
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

UPDATES = 2
GAP_SECONDS = 5.0
_REFUSED = "FailedCreatePodSandBox"
SOCKET = "/run/svc/agent.sock"  # /var/run is a symbolic link, which another root would resolve elsewhere


def test_no_call_fails(fresh: FreshCluster) -> None:
    """Pods that are started or deleted during the update wait, and nothing is left of them."""
    fresh.apply("--pool", "10.244.0.0/16")
    put_pod(fresh.kube, "before")
    fresh.await_address("before")
    fresh.await_svc("svc-node", "svc-controllers")
    churn = Churn(fresh.real, fresh.kube, DEFAULT.conflist, SOCKET)
    begins, refused = [], events(fresh.kube, _REFUSED)  # before the cluster is initialised
    with churn.running():
        for number in range(UPDATES):
            begins.append(time.time())
            fresh.restart()
            fresh.real.wait("the agent has ended", lambda: churn.is_refused)
            put_pod(fresh.kube, f"during{number}")
            if number == UPDATES - 1:
                delete_pod(fresh.kube, "before")
            fresh.real.wait("the node is updated", fresh.is_updated)
            fresh.await_address(f"during{number}")
    assert churn.failed == []
    assert len(churn.gaps) == UPDATES
    assert min(churn.gaps) <= GAP_SECONDS  # other programs of a busy machine may delay one of them
    assert events(fresh.kube, _REFUSED) == refused
    fresh.real.wait("the pod has ended", lambda: read_pod(fresh.kube, "before") is None)
    journal = fresh.real.library / "svc" / "journal.db"
    kept = {f"during{number}" for number in range(UPDATES)}

    def others() -> set[str]:
        return {row.pod for row in read_rows(journal).records} - kept

    fresh.real.wait("only the pods are attached", lambda: all(pod.startswith("svc-controllers-") for pod in others()))
    for begin, end in zip(begins, churn.ends, strict=True):
        print("\n" + ", ".join(f"{each:.1f} {what}" for each, what in phases(fresh.real.runtime_log(), begin, end)))
    longest = max(seconds for _, seconds in churn.calls)
    gaps = ", ".join(f"{each:.1f}" for each in churn.gaps)
    print(f"\n{len(churn.calls)} calls, 0 failed, the longest {longest:.1f} s; without an agent: {gaps} s")
