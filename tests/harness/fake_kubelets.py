"""Nodes without machines: they take pods, report them as running, and remove ended ones, by the API alone.

No scheduler runs: a pod without a node gets the one that its affinity names, else the first one.
"""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from harness.kube import Kube, Refused

Json = dict[str, Any]

_PATCH = "application/merge-patch+json"
_POLL_SECONDS = 0.02


class FakeKubelets:
    """The kubelets of some nodes. `stuck` has nodes whose pods do not start, with the reason and message of their container;
    `without_address` the names of pods that get none, `unready` the names of containers that run and do not become ready.
    `ended` has pods that end at once, by name, with their phase and the message of their container.
    `injected` returns images by the name of a container: what a service mesh changes in the pods that are made."""

    def __init__(self, kube: Kube, nodes: Iterable[str]) -> None:
        self._kube = kube.connected_again()
        self._nodes = tuple(nodes)
        self._ended = threading.Event()
        self._known: dict[str, Json] = {}  # pods by their UID
        self._watch: http.client.HTTPSConnection | None = None
        self._follows = threading.Event()
        self.stuck: dict[str, tuple[str, str]] = {}
        self.without_address: set[str] = set()
        self.unready: set[str] = set()
        self.ended: dict[str, tuple[str, str]] = {}
        self.injected: Callable[[], dict[str, str]] = dict

    @contextmanager
    def running(self) -> Iterator["FakeKubelets"]:
        """Register the nodes, and run until the end of the block. Then remove the nodes."""
        for name in self._nodes:
            labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
            self._kube.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            self._patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})  # of new nodes, which a controller removes
            self._patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        threads = [threading.Thread(target=self._follow), threading.Thread(target=self._run)]
        for thread in threads:
            thread.start()
        self._follows.wait()
        try:
            yield self
        finally:
            self._ended.set()
            self._hang_up()
            for thread in threads:
                thread.join()
            for name in self._nodes:
                self._kube.call("DELETE", f"/api/v1/nodes/{name}")
            self._kube.stop()

    def pods(self) -> list[Json]:
        found: list[Json] = self._kube.call("GET", "/api/v1/pods")["items"]
        return found

    def _follow(self) -> None:
        """Keep `_known` by a watch. It begins again if the server was restarted: lists would take a tenth of its time."""
        while not self._ended.is_set():
            with suppress(OSError, ValueError, http.client.HTTPException), self._kube.connected() as connection:
                self._watch, connection.timeout = connection, None
                connection.request("GET", "/api/v1/pods?watch=1", headers=self._kube.authorization)
                reply = connection.getresponse()
                self._follows.set()
                if not self._ended.is_set():
                    self._read_events(reply)
            self._ended.wait(_POLL_SECONDS)

    def _read_events(self, lines: Iterable[bytes]) -> None:
        """Read the events of a watch to its end. It begins with the pods that exist."""
        self._known.clear()
        for event in map(json.loads, lines):
            if event["type"] == "ERROR":
                return
            uid = event["object"]["metadata"]["uid"]
            if event["type"] == "DELETED":
                self._known.pop(uid, None)
            else:
                self._known[uid] = event["object"]

    def _hang_up(self) -> None:
        """End the watch."""
        connection = self._watch.sock if self._watch is not None else None
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            for pod in list(self._known.values()):
                with suppress(Refused):  # the pod has ended or changed
                    self._serve(pod)

    def _serve(self, pod: Json) -> None:
        metadata, status = pod["metadata"], pod.get("status") or {}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self._kube.call("DELETE", path, {"gracePeriodSeconds": 0})
            return
        node = pod["spec"].get("nodeName")
        if node is None:
            target = {"apiVersion": "v1", "kind": "Node", "name": self._choose(pod)}
            self._kube.call("POST", f"{path}/binding", {"metadata": {"name": metadata["name"]}, "target": target})
        elif metadata["name"] in self.ended:
            self._end(path, *self.ended[metadata["name"]])
        elif node in self.stuck:
            self._report(path, pod, self.stuck[node])
        elif status.get("phase") != "Running":
            self._inject(path, pod)
            self._report(path, pod, None)

    def _end(self, path: str, phase: str, message: str) -> None:
        state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 3, "message": message}}
        container = {"name": "check", "ready": False, "image": "", "imageID": "", "restartCount": 0, "state": state}
        self._patch(f"{path}/status", {"status": {"phase": phase, "containerStatuses": [container]}})

    def _inject(self, path: str, pod: Json) -> None:
        images = self.injected()
        for each in pod["spec"]["containers"]:
            if (wanted := images.get(each["name"])) and each["image"] != wanted:
                body = {"spec": {"containers": [{"name": each["name"], "image": wanted}]}}
                self._kube.call("PATCH", path, body, "application/strategic-merge-patch+json")
                each["image"] = wanted

    def _choose(self, pod: Json) -> str:
        text = str((pod["spec"].get("affinity") or {}).get("nodeAffinity"))
        return next((name for name in self._nodes if f"'{name}'" in text), self._nodes[0])

    def _report(self, path: str, pod: Json, stuck: tuple[str, str] | None) -> None:
        state: Json = {"running": {}}
        if stuck is not None:
            state = {"waiting": {"reason": stuck[0], "message": stuck[1]}}
        is_ready = stuck is None
        ready = {each["name"]: is_ready and each["name"] not in self.unready for each in pod["spec"]["containers"]}
        common = {"imageID": "", "restartCount": 0, "state": state}
        containers = [
            {"name": each["name"], "ready": ready[each["name"]], "image": each["image"]} | common
            for each in pod["spec"]["containers"]
        ]
        conditions = [{"type": "Ready", "status": str(all(ready.values()))}]
        wanted: Json = {
            "phase": "Running" if is_ready else "Pending",
            "conditions": conditions,
            "containerStatuses": containers,
        }
        present = pod.get("status") or {}
        if present.get("phase") != wanted["phase"] or len(present.get("containerStatuses") or ()) != len(containers):
            if pod["metadata"]["name"] not in self.without_address:
                wanted |= {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]}
            self._patch(f"{path}/status", {"status": wanted})

    def _patch(self, path: str, body: Json) -> None:
        self._kube.call("PATCH", path, body, _PATCH)
