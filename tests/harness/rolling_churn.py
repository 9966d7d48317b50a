"""Calls of the installed executable on a real node, as a runtime makes them, and the time without an agent."""

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.kube import Kube
from harness.kubelet_node import BIN_DIR, CONF_DIR, RealNode
from harness.orch import put_pod
from harness.workloads import delete_pod

Json = dict[str, Any]

_PROBE_SECONDS = 0.01


class Churn:
    """Threads that attach pods, which no kubelet starts, and detach them; and one that connects to the agent's socket."""

    def __init__(self, real: RealNode, kube: Kube, conflist: str, socket_path: str) -> None:
        self._real = real
        self._kube = kube
        found = json.loads(real.host("cat", str(CONF_DIR / conflist)).stdout)
        self._entry = found["plugins"][0] | {"name": found["name"], "cniVersion": found["cniVersion"]}
        self._socket = f"{real.root}{socket_path}"
        self._numbers = itertools.count()
        self._over = threading.Event()
        self.is_refused = False  # whether the agent's socket refuses connections now
        self.calls: list[tuple[str, float]] = []  # verb and seconds
        self.failed: list[str] = []
        self.addresses: list[str] = []
        self.gaps: list[float] = []  # seconds, each from the first refused connection to the next accepted one
        self.ends: list[float] = []  # Unix times of the ends of these

    @contextmanager
    def running(self, threads: int = 3) -> Iterator[None]:
        """Make calls inside the `with` block, and finish those that have begun."""
        works: list[Callable[[], None]] = [self._probe, *[self._churn] * threads]
        workers = [threading.Thread(target=work) for work in works]
        for worker in workers:
            worker.start()
        try:
            yield
        finally:
            self._over.set()
            for worker in workers:
                worker.join()

    def _churn(self) -> None:
        while not self._over.is_set():
            name = f"churn{next(self._numbers)}"
            path = f"/run/netns/{name}"
            put_pod(self._kube, name, "elsewhere")
            self._real.host("sh", "-c", 'mkdir -p /run/netns && touch "$0" && unshare --net="$0" true', path)
            result = self._call("ADD", name)
            if result:
                self.addresses += [each["address"] for each in json.loads(result)["ips"]]
            self._call("DEL", name)
            self._real.host("sh", "-c", 'umount "$0" && rm "$0"', path)
            delete_pod(self._kube, name, at_once=True)

    def _call(self, verb: str, name: str, **config: Any) -> str:
        variables = {
            "CNI_COMMAND": verb, "CNI_CONTAINERID": name, "CNI_NETNS": f"/var/run/netns/{name}", "CNI_IFNAME": "eth0",
            "CNI_PATH": str(BIN_DIR), "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}",
        }  # fmt: skip
        began = time.monotonic()
        done = self._real.host(str(BIN_DIR / "svc"), stdin=json.dumps(self._entry | config), check=False, **variables)
        self.calls.append((verb, time.monotonic() - began))
        if done.returncode:
            self.failed.append(f"{verb} {name}: {done.stdout}{done.stderr}")
        return done.stdout if verb == "ADD" and not done.returncode else ""

    def _probe(self) -> None:
        since = 0.0
        while not self._over.is_set():
            with socket.socket(socket.AF_UNIX) as client:
                refused = bool(client.connect_ex(self._socket))
            if refused and not self.is_refused:
                since = time.monotonic()
            elif self.is_refused and not refused:
                self.gaps.append(time.monotonic() - since)
                self.ends.append(time.time())
            self.is_refused = refused
            time.sleep(_PROBE_SECONDS)
