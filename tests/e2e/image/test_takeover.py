"""Two pods of the DaemonSet on one node, as a rolling update with a surge has them."""

import pytest

from harness.rolling_churn import Churn
from harness.svc_pods import NEXT_NODE_POD, NODE_POD, SvcPods
from svc.attach.journal_reader import read_rows
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.slow]

SOCKET = "/run/svc/agent.sock"  # /var/run is a symbolic link, which another root would resolve elsewhere


def test_next_agent_serves_as_soon_as_the_first_one_has_ended(pods: SvcPods) -> None:
    """The second pod is ready while the first agent serves, which lets Kubernetes end the first pod. No call fails."""
    pods.start_node_pod()
    churn = Churn(pods.real, pods.kube, DEFAULT.conflist, SOCKET)
    try:
        with churn.running():
            pods.start_node_pod(name=NEXT_NODE_POD)
            assert pods.is_ready(NODE_POD)
            assert churn.gaps == []
            pods.end(NODE_POD, seconds=30)
            made = len(churn.calls)
            pods.real.wait("calls go on", lambda: len(churn.calls) > made + 10)
            assert pods.is_ready(NEXT_NODE_POD)
        assert churn.failed == []
        assert not churn.is_refused
        assert "waiting up to 3600 s until process" in pods.log("agent")
        gaps = ", ".join(f"{each:.2f}" for each in churn.gaps)
        print(f"\n{len(churn.calls)} calls, 0 failed, the longest {max(each for _, each in churn.calls):.1f} s; gap {gaps} s")
    finally:
        pods.end(NEXT_NODE_POD)
    assert read_rows(pods.real.library / "svc" / "journal.db").records == []
