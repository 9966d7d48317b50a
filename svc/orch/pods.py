"""Pods and namespaces for ADD. Importing this module loads the client of the Kubernetes API."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from svc.datastore.api import StoreError
from svc.datastore.orch.answers import require_resource
from svc.datastore.orch.client import ApiError, Client
from svc.datastore.orch.resource_store import Collection
from svc.datastore.orch.watch import CollectionWatch
from svc.model.endpoint import DEFAULT_NAMESPACE
from svc.model.errors import Code, PeerError
from svc.orch.namespaces import PATH, NamespaceCache
from svc.orch.pod_info import Namespace, PodInfo

Json = dict[str, Any]
Answer = TypeVar("Answer")

NODES = "/api/v1/nodes"
_GONE = "if it was deleted, nothing is to be done; else compare the kubeconfig's cluster"

_MAX_PARALLEL = 16  # parallel requests to the server


class Forbidden(PeerError):
    """The caller has no permission to read the object."""


class Missing(PeerError):
    """The object does not exist."""


class PodReader:
    """Pods and namespaces of one API server, for any thread. Pods are not cached. `close` ends its threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        watch = CollectionWatch(client, "namespaces", lambda: Collection(PATH, lambda _: ()))
        self._namespaces = NamespaceCache(
            lambda name: self._get(f"{PATH}/{quote(name)}", f"namespace {name}"), watch, lambda: client.place
        )
        self._threads = ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="pods")

    @property
    def place(self) -> str:
        """The API server."""
        return self._client.place

    def read(self, namespace: str, name: str, uid: str, step: Callable[[], object]) -> PodInfo:
        """Read the namespace and the pod (unless `name` is empty), in parallel with `step`, whose error takes precedence.

        A namespace that the caller has no permission to read has no annotations and no labels. Raise PeerError if the request
        fails, if the pod does not exist, or if its UID is not `uid` (unless that is empty).
        """
        known = self._submit(partial(_as_far_as_allowed, self._namespaces.get), namespace)
        path = f"{PATH}/{quote(namespace)}/pods/{quote(name)}"
        asked = self._submit(partial(self._get, path), f"pod {namespace}/{name}") if name else None
        step()
        pod = asked.result() if asked is not None else None
        if pod is not None:
            _require_same(pod, uid)
        return PodInfo(pod, known.result(), lambda: self.namespace(namespace))

    def namespace(self, name: str) -> Namespace:
        """Read the namespace, as far as permitted. Raise PeerError if the request fails."""
        return _as_far_as_allowed(self._namespaces.read, name)

    def check_namespaces(self) -> str:
        """Return a warning if the caller may not read namespaces, else empty. Raise PeerError if the request fails."""
        with suppress(Missing):
            try:
                self._get(f"{PATH}/{DEFAULT_NAMESPACE}", f"namespace {DEFAULT_NAMESPACE}")
            except Forbidden as refusal:
                return Namespace(unreadable=refusal.msg).warning
        return ""

    def require_pods(self) -> None:
        """Raise PeerError if the request fails, or if the caller has no permission to read pods."""
        with suppress(Missing):
            self._get(f"{PATH}/{DEFAULT_NAMESPACE}/pods/status-probe", "pod status-probe")  # no pod has this name

    def node(self, name: str) -> Json:
        """Read the Node object. Raise PeerError if the request fails, or if the node does not exist."""
        fix = "name the node whose pod CIDRs are meant in orch.node_name, or this one in nodename"
        return self._get(f"{NODES}/{quote(name, safe='')}", f"node {name}", fix)

    def close(self) -> None:
        self._client.close()
        self._namespaces.close()
        self._threads.shutdown()

    def token_expires(self) -> float | None:
        """Return the Unix time at which the client's token expires; None if that is not known."""
        return self._client.token_expires()

    def _submit(self, ask: Callable[[str], Answer], name: str) -> "Future[Answer]":
        """Run a request on another thread in the context of the call, so that the call's deadline applies."""
        return self._threads.submit(copy_context().run, ask, name)

    def _get(self, path: str, what: str, fix: str = _GONE) -> Json:
        """Return an object. `what` names it if it does not exist, with the fix."""
        try:
            return require_resource(self._client.get(path), f"GET {path}")
        except StoreError as failure:
            status = failure.status if isinstance(failure, ApiError) else 0
            if status == 404:
                raise Missing(f"{self._client.place} does not know {what}", details=fix, code=Code.ORCHESTRATOR) from failure
            kind = Forbidden if status == 403 else PeerError
            msg = f"a request to the Kubernetes API failed: {failure.msg}"
            raise kind(msg, details=failure.details, code=Code.ORCHESTRATOR) from failure


def _as_far_as_allowed(ask: Callable[[str], Namespace], name: str) -> Namespace:
    try:
        return ask(name)
    except Forbidden as refusal:
        return Namespace(unreadable=refusal.msg)


def _require_same(pod: Json, uid: str) -> None:
    metadata = pod["metadata"]
    found = str(metadata.get("uid") or "")
    if uid and uid != found:
        raise PeerError(
            f"pod {metadata.get('namespace')}/{metadata.get('name')} is another one by now: its uid is {found}, not {uid}",
            details="the pod was deleted and created again: its own ADD will come",
            code=Code.ORCHESTRATOR,
        )
