"""svcctl upgrade apply on a cluster with a real node, while pods ping each other and the runtime makes calls."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.fresh_cluster import IMAGE, NODE, FreshCluster
from harness.kubelet_node import IMAGE as BUSYBOX
from harness.rolling_churn import Churn
from harness.workloads import delete_pod, events, pods_path, put_pod, read_pod
from svc import __version__
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

Json = dict[str, Any]

SOCKET = "/run/svc/agent.sock"  # /var/run is a symbolic link, which another root would resolve elsewhere
NEWER = f"{IMAGE.partition(':')[0]}:{__version__.rpartition('.')[0]}.{int(__version__.rpartition('.')[2]) + 1}"
PING_SECONDS = 0.1


def put_pinger(fresh: FreshCluster, name: str, address: str) -> None:
    """Start a pod that sends pings to an address all the time."""
    script = f"until ping -c 1 -W 1 {address}; do sleep 1; done; echo begin; exec ping -i {PING_SECONDS} {address}"
    container = {"name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    spec = {"nodeName": NODE, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
    body = {"metadata": {"name": name}, "spec": spec | {"containers": [container]}}
    fresh.kube.call("POST", pods_path(), body)


def answers(fresh: FreshCluster, name: str) -> list[int]:
    """Return the numbers of the answered pings of a pod."""
    log = fresh.real.host("sh", "-c", f"cat /var/log/pods/default_{name}_*/c/*.log").stdout
    return [int(number) for number in re.findall(r"seq=(\d+)", log.partition("begin")[2])]


def lost(numbers: list[int]) -> set[int]:
    return set(range(numbers[0], numbers[-1] + 1)) - set(numbers)


def offer_newer(fresh: FreshCluster) -> None:
    """Let containerd have the image under the tag of a newer release, and let the agents run as that."""
    ctr = ("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "images", "tag")
    fresh.real.host(*ctr, f"docker.io/library/{IMAGE}", f"docker.io/library/{NEWER}")


def test_no_ping_and_no_call_is_lost(fresh: FreshCluster, tmp_path: Path) -> None:
    fresh.apply("--pool", "10.244.0.0/16")
    put_pod(fresh.kube, "first")
    first = fresh.await_address("first")
    fresh.await_svc("svc-node", "svc-controllers")
    put_pinger(fresh, "second", first)
    put_pinger(fresh, "third", fresh.await_address("second"))
    fresh.await_address("third")
    fresh.real.wait("both pods get answers", lambda: all(len(answers(fresh, name)) > 20 for name in ("second", "third")))
    offer_newer(fresh)
    manifest = tmp_path / "newer.yaml"
    options = ("--policy-api", "policy/v1beta1", "--pool", "10.244.0.0/16")
    manifest.write_text(fresh.svcctl("manifests", "--image", NEWER, *options))
    given = ("--manifest", str(manifest), "--kubeconfig", str(fresh.kubeconfig))
    state = ("--state-dir", str(tmp_path / "state"), "upgrade")
    before = {name: answers(fresh, name)[-1] for name in ("second", "third")}
    churn = Churn(fresh.real, fresh.kube, DEFAULT.conflist, SOCKET)
    with churn.running():
        put_pod(fresh.kube, "during")
        fresh.svcctl(*state, "apply", *given, "--timeout", "5m")
        fresh.await_address("during")
        after = {name: answers(fresh, name) for name in ("second", "third")}
    images = {each["image"] for each in fresh.daemon_set()["spec"]["template"]["spec"]["containers"]}
    assert images == {NEWER}
    assert fresh.svcctl(*state, "apply", *given) == "nothing to do\n"
    assert churn.failed == []
    assert events(fresh.kube, "FailedCreatePodSandBox") == []
    assert {name: lost(numbers) for name, numbers in after.items()} == {"second": set(), "third": set()}
    pings = sum(numbers[-1] - before[name] for name, numbers in after.items())
    for name in ("during", "third"):
        delete_pod(fresh.kube, name)
        fresh.real.wait(f"{name} has ended", lambda name=name: read_pod(fresh.kube, name) is None)  # type: ignore[misc]
    longest = max(seconds for _, seconds in churn.calls)
    gaps = ", ".join(f"{each:.1f}" for each in churn.gaps)
    print(
        f"\n{len(churn.calls)} calls, 0 failed, the longest {longest:.1f} s; {pings} pings, 0 lost; without an agent: {gaps} s"
    )
