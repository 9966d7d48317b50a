"""Pods and namespaces as ADD needs them: read when they are asked for, never remembered.

Calls that wait for the same namespace at the same time share one reading: a burst of pods is mostly of one namespace.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from svc.combine import Combiner
from svc.datastore.api import StoreError
from svc.model.errors import Code, PeerError

Json = dict[str, Any]

_SIDE_BY_SIDE = 16  # requests on their way to the server


class Client(Protocol):
    """As the API server is asked: paths in, objects out; StoreError, with `status` 404 for what does not exist."""

    def get(self, path: str) -> Json: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A namespace and, where it was asked for, a pod in it."""

    pod: Json | None = None
    namespace_labels: dict[str, str] = field(default_factory=dict)
    namespace_annotations: dict[str, str] = field(default_factory=dict)


class Pods:
    """Of one API server; from any thread. `close` ends its threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._namespaces: dict[str, Combiner[None, Json]] = {}
        self._threads = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="pods")

    def read(self, namespace: str, name: str, uid: str, meanwhile: Callable[[], None]) -> PodInfo:
        """The namespace and the pod (unless `name` is empty), asked for while `meanwhile` runs, whose failure counts first.

        PeerError when the API cannot be asked, or the pod is gone or, by its `uid` (if not empty), another one.
        """
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"
        asked = self._threads.submit(self._namespace, namespace)
        asked_pod = self._threads.submit(self._get, path) if name else None
        meanwhile()
        pod = asked_pod.result() if asked_pod is not None else None
        if pod is not None:
            _demand_same(pod, uid)
        metadata = asked.result()["metadata"]
        return PodInfo(pod, metadata.get("labels") or {}, metadata.get("annotations") or {})

    def close(self) -> None:
        self._client.close()
        self._threads.shutdown()

    def _namespace(self, name: str) -> Json:
        with self._lock:
            readers = self._namespaces.setdefault(name, Combiner(lambda waiting: self._read_namespace(name, waiting)))
        return readers.run(None)

    def _read_namespace(self, name: str, waiting: Sequence[None]) -> list[Json]:
        found = self._get(f"/api/v1/namespaces/{quote(name)}")
        return [found] * len(waiting)

    def _get(self, path: str) -> Json:
        try:
            return self._client.get(path)
        except StoreError as failure:
            gone = getattr(failure, "status", 0) == 404
            details = "it was deleted meanwhile: nothing needs to be done" if gone else failure.details
            raise PeerError(
                f"the orchestrator was asked in vain: {failure.msg}", details=details, code=Code.ORCHESTRATOR
            ) from failure


def _demand_same(pod: Json, uid: str) -> None:
    metadata = pod["metadata"]
    found = str(metadata.get("uid") or "")
    if uid and uid != found:
        raise PeerError(
            f"pod {metadata.get('namespace')}/{metadata.get('name')} is another one by now: its uid is {found}, not {uid}",
            details="the pod was deleted and created again: its own ADD will come",
            code=Code.ORCHESTRATOR,
        )
