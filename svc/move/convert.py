"""The documents of the source in the form that they have in the target.

A document in the Kubernetes API gets another UID and creation time. An annotation has those from before the move, so that a
move back restores them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from svc.admin.cluster_version import API_TYPE
from svc.admin.resources import CLUSTER, POOL, READY
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.ipam import Affinity, Block, Handle, IpamConfig
from svc.model.keys import AffinityKey, HandleKey, Key, NodeClaimKey, NodeFenceKey, ResourceKey
from svc.model.kv_codec import Value
from svc.model.resource import Resource, ordered
from svc.move.nodes import NodeNames
from svc.names import Names
from svc.values import dataclass, replace

Json = dict[str, Any]

_IDENTITY: Final = ("uid", "creationTimestamp")
_FROM_KUBERNETES: Final = "knp.default."  # names of policies that are copies of those of Kubernetes
_OWN_STEP: Final = frozenset({CLUSTER.kind, "Node", ENDPOINT})
_DISABLED: Final = "disabled"
_WITH_NODE: Final = ("HostEndpoint", "BGPPeer")  # kinds whose field `node` names a node
_NAMED_AFTER_NODE: Final = ("FelixConfiguration", "BGPConfiguration")  # kinds whose names may be those of a node, with a prefix
_NODE_PREFIX: Final = "node."


@dataclass(frozen=True, slots=True)
class Form:
    """Form of the documents in a target: names of the nodes, and whether it is the Kubernetes API."""

    names: Names
    nodes: NodeNames
    in_kubernetes: bool


def moves(key: Key) -> bool:
    """Return whether the document of a key is copied. The others have a step of their own, or are made again."""
    if isinstance(key, ResourceKey):
        is_copy = key.kind == "NetworkPolicy" and key.name.startswith(_FROM_KUBERNETES)
        return key.kind not in _OWN_STEP and key.kind != "Profile" and not is_copy
    return not isinstance(key, NodeClaimKey | NodeFenceKey)


def converted(form: Form, documents: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return the documents that are copied, with their keys and values in the target."""
    return dict(_converted(form, key, value) for key, value in documents.items() if moves(key))


def _converted(form: Form, key: Key, value: Value) -> tuple[Key, Value]:
    match key, value:
        case HandleKey(handle=handle), _:
            return HandleKey(form.nodes.handle(handle)), value
        case AffinityKey(), _:
            return form.nodes.key(key), value
        case _, Block():
            return key, form.nodes.block(value)
        case ResourceKey(), Resource():
            name = _new_name(form, key)
            return replace(key, name=name), _renamed(form, with_identity(form, value), name)
    return key, value


def with_identity(form: Form, resource: Resource) -> Resource:
    """Return the resource with the annotation of its identity, or with the identity that the annotation has."""
    metadata, name = dict(resource.metadata), identity_annotation(form.names)
    annotations = dict(metadata.get("annotations") or {})
    if form.in_kubernetes:
        identity = {field: metadata[field] for field in _IDENTITY if metadata.get(field)}
        annotations.setdefault(name, orjson.dumps(identity).decode())
    elif (before := _loaded(annotations.pop(name, ""))) is not None:
        metadata = {field: item for field, item in (metadata | before).items() if field not in _IDENTITY or field in before}
    return replace(resource, metadata=ordered(metadata | {"annotations": annotations}))


def identity_annotation(names: Names) -> str:
    """Return the annotation with the identity of a resource before a move."""
    return f"{names.label_prefix}/before-move"


def _loaded(text: str) -> Json | None:
    """Return the identity in an annotation; None if it has none, or not one that can be read."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _new_name(form: Form, key: ResourceKey) -> str:
    """Return the name of a resource in the target. That of a node's settings has the name of the node."""
    node = key.name.removeprefix(_NODE_PREFIX)
    is_of_node = key.kind in _NAMED_AFTER_NODE and node != key.name
    return _NODE_PREFIX + form.nodes.of(node) if is_of_node else key.name


def _renamed(form: Form, resource: Resource, name: str) -> Resource:
    node, metadata = resource.spec.get("node"), resource.metadata
    if name != resource.name:
        metadata = ordered(metadata | {"name": name})
    if resource.kind not in _WITH_NODE or not isinstance(node, str):
        return replace(resource, metadata=metadata)
    return replace(resource, metadata=metadata, spec=resource.spec | {"node": form.nodes.of(node)})


def disabled(value: Value) -> Value:
    """Return a pool as it is during the import; any other value unchanged."""
    if not isinstance(value, Resource) or value.kind != POOL or value.spec.get(_DISABLED) is True:
        return value
    return replace(value, spec=value.spec | {_DISABLED: True})


def cluster_spec(form: Form, spec: Json) -> Json:
    """Return the fields of ClusterInformation in the target, which is locked."""
    given = [each for each in str(spec.get("clusterType") or "").split(",") if each and each != API_TYPE]
    types = ",".join([*given, *([API_TYPE] if form.in_kubernetes else [])])
    return {name: value for name, value in (spec | {"clusterType": types, READY: False}).items() if value != ""}


def comparable(form: Form, key: Key, value: Value) -> Json:
    """Return a document without what differs between stores for the same content.

    The Kubernetes API knows no null in place of an empty list, and assigns identities and generations.
    """
    match value:
        case Block():
            return value.to_json() | {"attributes": [attribute.to_json() for attribute in value.attributes or ()]}
        case Resource():
            return _comparable(form, value)
        case Affinity() | Handle() | IpamConfig():
            return value.to_json()
    raise TypeError(f"{key} is not copied")


def _comparable(form: Form, resource: Resource) -> Json:
    metadata = dict(resource.metadata)
    for name in _IDENTITY if form.in_kubernetes else ():
        metadata.pop(name, None)
    found = ordered(metadata)
    return {"metadata": found, "spec": resource.spec, "status": resource.status or {}, "extra": resource.extra or {}}


def in_order(documents: Mapping[Key, Value]) -> Iterator[tuple[Key, Value]]:
    """Yield the documents in the order of an import: settings, resources, handles, blocks, affinities."""
    return iter(sorted(documents.items(), key=lambda item: _rank(item[1])))


def _rank(value: Value) -> int:
    match value:
        case IpamConfig():
            return 0
        case Resource(kind=kind):
            return 1 if kind == POOL else 2
        case Handle():
            return 3
        case Block():
            return 4
    return 5


def comparable_disabled(form: Form, key: Key, value: Value) -> Json:
    """Return a document as `comparable`, without the difference between a pool that is enabled and one that is disabled."""
    return comparable(form, key, disabled(value))
