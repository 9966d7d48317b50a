"""Endpoints of a move: annotations of pods in the Kubernetes API, documents in other datastores."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.observation import Place
from svc.datastore.api import Entry
from svc.datastore.expired_pages import repeated
from svc.datastore.orch.parallel import ParallelWriter
from svc.model.endpoint import KIND, PRIMARY_INTERFACE
from svc.model.ipam import Block
from svc.model.keys import Key, ResourceKey, ResourceQuery
from svc.model.kv_codec import Value
from svc.model.pod_endpoint import attachments_of, cleared_annotations, endpoints_of, pod_interface, wired_annotations
from svc.model.resource import Resource
from svc.move.convert import Form
from svc.move.writing import CONNECTIONS, Writer
from svc.names import Names
from svc.values import dataclass, field, replace

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

_PODS: Final = "/api/v1/pods"
_PAGE: Final = "500"
_ATTEMPTS: Final = 3  # of a patch
_REPEATED: Final = (404, 409, 422)  # statuses of a pod that was replaced, or that another program changes
_STRATEGIC: Final = "application/strategic-merge-patch+json"

Endpoints = dict[str, Resource]
"""The endpoints of a pod, by interface."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was done with the endpoints: how many have their pod, and why others were left out."""

    kept: int = 0
    left: dict[str, str] = field(default_factory=dict)


def of_documents(documents: Mapping[Key, Value]) -> dict[ResourceKey, Resource]:
    """Return the endpoints among documents."""
    return {
        key: value
        for key, value in documents.items()
        if isinstance(key, ResourceKey) and key.kind == KIND and isinstance(value, Resource)
    }


def move(form: Form, documents: Mapping[Key, Value], target: Place, connections: int = CONNECTIONS) -> Report:
    """Write the endpoints to the target. Raise StoreError if that fails; repeat it then."""
    if form.in_kubernetes:
        annotations = _Annotations(form, documents, target)
        return repeated(lambda: annotations.write(connections))
    return _write_documents(form, of_documents(documents), target, connections)


def compare(form: Form, documents: Mapping[Key, Value], target: Place) -> list[str]:
    """Return the endpoints that differ between the source and the target, of those whose pods still have them."""
    if form.in_kubernetes:
        return repeated(_Annotations(form, documents, target).differences)
    present = {entry.key: entry.value for entry in target.backend.list(ResourceQuery(KIND))}
    wanted = _renamed(form, of_documents(documents))
    missing = (key for key, value in wanted.items() if key not in present or _wiring(present[key]) != _wiring(value))
    extra = (key for key in present if key not in wanted)
    return [f"{key.namespace}/{key.name}" for key in (*missing, *extra) if isinstance(key, ResourceKey)]


def _write_documents(form: Form, endpoints: Mapping[ResourceKey, Resource], target: Place, connections: int) -> Report:
    """Write the endpoints that are missing or show another wiring. Others stay, because they can say more than a pod."""
    present: dict[Key, Entry] = {entry.key: entry for entry in target.backend.list(ResourceQuery(KIND))}
    wanted = _renamed(form, endpoints)
    writer = Writer(form, target, connections, lambda _key, value: _wiring(value))
    writer.write(list(wanted.items()), present)
    writer.delete([entry for key, entry in present.items() if key not in wanted])
    return Report(len(wanted))


def _wiring(endpoint: Value) -> tuple[Any, ...]:
    assert isinstance(endpoint, Resource)
    spec = endpoint.spec
    return tuple(spec.get(name) or None for name in ("node", "containerID", "ipNetworks"))


def _renamed(form: Form, endpoints: Mapping[ResourceKey, Resource]) -> dict[ResourceKey, Resource]:
    return dict(_with_node(form, key, value) for key, value in endpoints.items())


def _with_node(form: Form, key: ResourceKey, endpoint: Resource) -> tuple[ResourceKey, Resource]:
    """Return an endpoint with the name of its node in the target, which its own name starts with."""
    node = str(endpoint.spec.get("node") or "")
    new = form.nodes.of(node)
    head = f"{_escaped(node)}-"
    if new == node or not key.name.startswith(head):
        return key, endpoint
    name = f"{_escaped(new)}-{key.name.removeprefix(head)}"
    metadata = endpoint.metadata | {"name": name}
    return replace(key, name=name), replace(endpoint, metadata=metadata, spec=endpoint.spec | {"node": new})


def _escaped(segment: str) -> str:
    return segment.replace("-", "--")


class _Annotations:
    """The annotations of the pods of a Kubernetes API. Pods that no endpoint belongs to lose those of an earlier time."""

    def __init__(self, form: Form, documents: Mapping[Key, Value], target: Place) -> None:
        assert target.client is not None
        self._form, self._client, self._names = form, target.client, form.names
        self._wanted = _by_pod(form.names, _renamed(form, of_documents(documents)))
        self._added = dict(_times_of_adds(documents))

    def write(self, connections: int) -> Report:
        """Write what is missing, and say which endpoints have no pod."""
        report, seen = Report(), set[str]()
        pool = ParallelWriter(connections, "move")
        kept = 0
        try:
            for page in self._client.pages(_PODS, limit=_PAGE):
                seen |= {_name(pod) for pod in page.items}
                todo = [(pod, patch) for pod in page.items if (patch := self._patch(pod, report.left))]
                kept += sum(1 for pod in page.items for _ in self._own(pod, {}))
                for name, reason in pool.map(lambda item: self._send(*item), todo):
                    report.left.update({name: reason} if reason else {})
        finally:
            pool.close()
        gone = {name: "its pod does not exist any more" for name in self._wanted if name not in seen}
        return Report(kept, report.left | gone)

    def differences(self) -> list[str]:
        """Return the pods whose annotations are not the wanted ones."""
        pages = self._client.pages(_PODS, limit=_PAGE)
        return [_name(pod) for page in pages for pod in page.items if self._patch(pod, {})]

    def _patch(self, pod: Json, left: dict[str, str]) -> dict[str, str]:
        """Return the annotations of a pod that have to change. Record in `left` why an endpoint is not that of the pod."""
        present = pod["metadata"].get("annotations") or {}
        wanted: dict[str, str] = {}
        if any(True for _ in attachments_of(self._names, pod)):
            for key, _ in endpoints_of(self._names, pod):
                interface = pod_interface(self._names, key)
                wanted |= cleared_annotations(self._names, interface.interface) if interface else {}
        for name, endpoint in self._own(pod, left):
            wanted |= wired_annotations(self._names, name, endpoint)
        return {name: text for name, text in wanted.items() if present.get(name) != text}

    def _own(self, pod: Json, left: dict[str, str]) -> Iterator[tuple[str, Resource]]:
        """Yield the endpoints that are those of this pod, with their interfaces."""
        for interface, endpoint in self._wanted.get(_name(pod), {}).items():
            if reason := self._not_of(pod, endpoint):
                left[_name(pod)] = reason
            else:
                yield interface, endpoint

    def _not_of(self, pod: Json, endpoint: Resource) -> str:
        """Return why an endpoint is not that of this pod, but of an earlier one of the same name; empty if it is."""
        spec, metadata = pod.get("spec") or {}, pod["metadata"]
        if spec.get("hostNetwork") or spec.get("nodeName") != endpoint.spec.get("node"):
            return "its pod is on another node, or has the network of its node"
        status = {address for text in _addresses(pod) if (address := _address(text))}
        if status and endpoint.spec.get("endpoint", PRIMARY_INTERFACE) == PRIMARY_INTERFACE:
            own = {Cidr(text).first for text in endpoint.spec.get("ipNetworks") or ()}
            return "" if status & own else "its pod was created again, and has other addresses"
        added = self._added.get(str(endpoint.spec.get("containerID") or ""), "")
        is_older = added and added < str(metadata.get("creationTimestamp") or "").removesuffix("Z")
        return "its pod was created again after the ADD" if is_older else ""

    def _send(self, pod: Json, annotations: dict[str, str]) -> tuple[str, str]:
        """Write annotations to the pod with this UID. Return its name, and why it did not get them."""
        metadata, name = pod["metadata"], _name(pod)
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        body = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
        return name, _patched(self._client, path, body)


def _patched(client: "Client", path: str, body: Json) -> str:
    """Patch the status of a pod. Return why it is not there any more; repeat a patch that was refused or had no answer."""
    from svc.datastore.orch.client import ApiError, Unreachable  # loaded already, with the store

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            client.patch(f"{path}/status", body, _STRATEGIC)
        except (ApiError, Unreachable) as error:
            if attempt == _ATTEMPTS or not (getattr(error, "maybe_applied", False) or getattr(error, "status", 0) in _REPEATED):
                raise
            if reason := _lost(client, path, body["metadata"]["uid"]):
                return reason
            continue
        return ""
    raise AssertionError


def _lost(client: "Client", path: str, uid: str) -> str:
    """Return why the pod with this UID is gone; empty if it exists."""
    pod = client.get_if_served(path)
    if pod is None:
        return "its pod was deleted during the move"
    return "" if pod["metadata"]["uid"] == uid else "its pod was created again during the move"


def _by_pod(names: Names, endpoints: Mapping[ResourceKey, Resource]) -> dict[str, Endpoints]:
    found: dict[str, Endpoints] = {}
    for key, endpoint in endpoints.items():
        interface = pod_interface(names, key)
        if interface is not None:
            found.setdefault(f"{interface.namespace}/{interface.pod}", {})[interface.interface] = endpoint
    return found


def _times_of_adds(documents: Mapping[Key, Value]) -> Iterator[tuple[str, str]]:
    """Yield containers and the times of their ADDs, in the form of the API to the second."""
    for value in documents.values():
        for attribute in (value.attributes or ()) if isinstance(value, Block) else ():
            text = (attribute.secondary or {}).get("timestamp", "")
            if attribute.handle_id and text.endswith(" UTC"):
                yield attribute.handle_id.rpartition(".")[2], text[:19].replace(" ", "T")


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _addresses(pod: Json) -> Iterable[str]:
    status = pod.get("status") or {}
    return [str(item.get("ip") or "") for item in status.get("podIPs") or ()] or [str(status.get("podIP") or "")]


def _address(text: str) -> Address | None:
    try:
        return Address(text)
    except ValueError:
        return None


def without_pod(names: Names, endpoints: Mapping[ResourceKey, Resource]) -> list[str]:
    """Return the endpoints that belong to no pod, so that the Kubernetes API has no place for them."""
    return [f"{key.namespace}/{key.name}" for key in endpoints if pod_interface(names, key) is None]
