"""Bare requests to the Kubernetes API: a client that does nothing else, on a connection of its own."""

import http.client
import json
import re
import ssl
import time
from pathlib import Path
from typing import Any

import yaml

from harness.etcd import TIMEOUT_SECONDS

Json = dict[str, Any]

PATCH = "application/strategic-merge-patch+json"
_REVISION = re.compile(rb'"resourceVersion":"(\d+)"')


class Requests:
    """The connection, as the user of a kubeconfig file."""

    def __init__(self, kubeconfig: str) -> None:
        found = yaml.safe_load(Path(kubeconfig).read_text())
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        host = cluster["server"].removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, timeout=TIMEOUT_SECONDS, context=context)
        self._token = user["token"]

    def send(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> bytes:
        """Return the answer. Raise RuntimeError if the server refuses."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        self._connection.request(method, path, json.dumps(body) if body else None, headers)
        reply = self._connection.getresponse()
        data = reply.read()
        if reply.status >= 300:
            raise RuntimeError(f"{method} {path}: {reply.status} {data[:200]!r}")
        return data

    def ask(self, method: str, path: str, body: Json | None = None) -> str:
        """Return the revision in the answer, which is not decoded."""
        revision = _REVISION.search(self.send(method, path, body))
        return revision[1].decode() if revision else ""

    def close(self) -> None:
        self._connection.close()


def requests_of_add(kubeconfig: str, api_version: str, pods: list[str], rounds: int) -> list[float]:
    """Return the milliseconds of the four requests, one after the other, that an ADD cannot avoid: GET and PATCH of its pod,
    POST of a handle, and PUT of a block. `pods` are the paths of pods, in turns."""
    requests = Requests(kubeconfig)
    root = f"/apis/{api_version}"
    try:
        block = _bare_block(requests, root)
        times = [_add_once(requests, root, block, pods[number % len(pods)]) for number in range(rounds)]
        requests.send("DELETE", f"{root}/ipamblocks/{block['metadata']['name']}")
    finally:
        requests.close()
    return times


def _bare_block(requests: Requests, root: str) -> Json:
    """Create a copy of the node's block that no allocation uses, and return it."""
    block: Json = json.loads(requests.send("GET", f"{root}/ipamblocks?limit=1"))["items"][0]
    block["metadata"] = {"name": "bare"}
    created: Json = json.loads(requests.send("POST", f"{root}/ipamblocks", block))
    return created


def _add_once(requests: Requests, root: str, block: Json, pod: str) -> float:
    handle = {"apiVersion": block["apiVersion"], "kind": "IPAMHandle", "metadata": {"name": "bare"}}
    spec = {"handleID": "bare", "block": {block["spec"]["cidr"]: 1}, "deleted": False}
    own_block, counter = f"{root}/ipamblocks/bare", block["spec"]
    counter["sequenceNumber"] = counter.get("sequenceNumber", 0) + 1
    started = time.perf_counter()
    requests.send("GET", pod)
    requests.send("POST", f"{root}/ipamhandles", handle | {"spec": spec})
    block["metadata"]["resourceVersion"] = requests.ask("PUT", own_block, block)
    requests.send("PATCH", f"{pod}/status", {"metadata": {"annotations": {"bare": str(counter["sequenceNumber"])}}}, PATCH)
    ms = (time.perf_counter() - started) * 1000
    requests.send("DELETE", f"{root}/ipamhandles/bare")
    return ms
