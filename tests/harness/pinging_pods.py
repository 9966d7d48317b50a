"""Pods of a fresh cluster that send pings to each other all the time, and which of these had no answer."""

import re

from harness.fresh_cluster import NODE, FreshCluster
from harness.kubelet_node import IMAGE
from harness.workloads import pods_path, put_pod

PING_SECONDS = 0.1
_ENOUGH = 20  # answers


class PingingPods:
    """Two pods that send pings: `second` to `first`, and `third` to `second`."""

    NAMES = ("second", "third")

    def __init__(self, fresh: FreshCluster) -> None:
        self._fresh = fresh
        put_pod(fresh.kube, "first")
        self._put("second", fresh.await_address("first"))
        self._put("third", fresh.await_address("second"))
        fresh.await_address("third")
        fresh.real.wait("both pods get answers", lambda: min(map(len, self.answers().values())) > _ENOUGH)
        self._before = self.answers()

    def _put(self, name: str, address: str) -> None:
        script = f"until ping -c 1 -W 1 {address}; do sleep 1; done; echo begin; exec ping -i {PING_SECONDS} {address}"
        container = {"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
        spec = {"nodeName": NODE, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
        body = {"metadata": {"name": name}, "spec": spec | {"containers": [container]}}
        self._fresh.kube.call("POST", pods_path(), body)

    def answers(self) -> dict[str, list[int]]:
        """Return the numbers of the answered pings of each pod."""
        return {name: self._answers(name) for name in self.NAMES}

    def _answers(self, name: str) -> list[int]:
        log = self._fresh.real.host("sh", "-c", f"cat /var/log/pods/default_{name}_*/c/*.log").stdout
        return [int(number) for number in re.findall(r"seq=(\d+)", log.partition("begin")[2])]

    def require_none_lost(self) -> int:
        """Require an answer to each ping until now. Return how many were sent since the construction, or the last call."""
        now = self.answers()
        lost = {name: set(range(numbers[0], numbers[-1] + 1)) - set(numbers) for name, numbers in now.items()}
        assert lost == {name: set() for name in self.NAMES}
        sent = {name: numbers[-1] - self._before[name][-1] for name, numbers in now.items()}
        assert all(sent.values()), sent
        self._before = now
        return sum(sent.values())
