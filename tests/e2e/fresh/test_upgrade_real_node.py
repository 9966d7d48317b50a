"""svcctl upgrade apply on a cluster with a real node, while pods ping each other and the runtime makes calls."""

from pathlib import Path
from typing import Any

import pytest

from harness.etcd_release import SECRET
from harness.fresh_cluster import IMAGE, FreshCluster
from harness.fresh_etcd import FreshEtcd
from harness.pinging_pods import PingingPods
from harness.rolling_churn import Churn
from harness.workloads import delete_pod, events, put_pod, read_pod
from svc import __version__
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

Json = dict[str, Any]

SOCKET = "/run/svc/agent.sock"  # /var/run is a symbolic link, which another root would resolve elsewhere
NEWER = f"{IMAGE.partition(':')[0]}:{__version__.rpartition('.')[0]}.{int(__version__.rpartition('.')[2]) + 1}"
POOL = "10.244.0.0/16"


def offer_newer(fresh: FreshCluster) -> None:
    """Let containerd have the image under the tag of a newer release, and let the agents run as that."""
    ctr = ("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "images", "tag")
    fresh.real.host(*ctr, f"docker.io/library/{IMAGE}", f"docker.io/library/{NEWER}")


def require_upgrade(fresh: FreshCluster, folder: Path, procedure: str, *options: str) -> None:
    """Upgrade svc with these options of its manifests. Require an answer to each ping, and that no call fails."""
    pings = PingingPods(fresh)
    fresh.await_svc("svc-node", "svc-controllers")
    offer_newer(fresh)
    manifest = folder / "newer.yaml"
    manifest.write_text(fresh.svcctl("manifests", "--image", NEWER, "--policy-api", "policy/v1beta1", *options))
    given = ("--manifest", str(manifest), "--kubeconfig", str(fresh.kubeconfig))
    state = ("--state-dir", str(folder / "state"), "upgrade")
    assert f"procedure: {procedure}\n" in fresh.svcctl(*state, "plan", *given, on_node=True)
    refused = events(fresh.kube, "FailedCreatePodSandBox")  # before the cluster is initialised
    churn = Churn(fresh.real, fresh.kube, DEFAULT.conflist, SOCKET)
    with churn.running():
        put_pod(fresh.kube, "during")
        fresh.svcctl(*state, "apply", *given, "--timeout", "5m", on_node=True)
        fresh.await_address("during")
        answered = pings.require_none_lost()
    images = {each["image"] for each in fresh.daemon_set()["spec"]["template"]["spec"]["containers"]}
    assert images == {NEWER}
    assert fresh.svcctl(*state, "apply", *given, on_node=True) == "nothing to do\n"
    assert churn.failed == []
    assert events(fresh.kube, "FailedCreatePodSandBox") == refused
    for name in ("during", "third"):
        delete_pod(fresh.kube, name)
        fresh.real.wait(f"{name} has ended", lambda name=name: read_pod(fresh.kube, name) is None)  # type: ignore[misc]
    longest = max(seconds for _, seconds in churn.calls)
    gaps = ", ".join(f"{each:.1f}" for each in churn.gaps)
    print(
        f"\n{procedure}: {len(churn.calls)} calls, 0 failed, the longest {longest:.1f} s; {answered} pings, 0 lost; "
        f"without an agent: {gaps} s"
    )


def test_no_ping_and_no_call_is_lost(fresh: FreshCluster, tmp_path: Path) -> None:
    fresh.apply("--pool", POOL)
    require_upgrade(fresh, tmp_path, "manifests", "--pool", POOL)


def test_no_ping_and_no_call_is_lost_with_etcd(fresh: FreshCluster, fresh_etcd: FreshEtcd, tmp_path: Path) -> None:
    """It accepts clients with a certificate alone. The Secret with that stays as it is."""
    fresh_etcd.install(POOL)
    require_upgrade(fresh, tmp_path, "manifests-etcd", *fresh_etcd.options)
    assert fresh.kube.call("GET", SECRET)["data"] == fresh_etcd.data
