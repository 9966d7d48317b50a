"""Paths and JSON documents of keys and values in a key-value store.

The layout below the key root:

    ipam/v2/assignment/ipv{4,6}/block/CIDR          a block; paths have "-" for the slash of a CIDR
    ipam/v2/{host,virtual}/HOST/ipv{4,6}/block/CIDR an affinity
    ipam/v2/handle/HANDLE                           a handle, verbatim
    ipam/v2/config                                  the IPAM settings
    resources/VERSION/GROUP/PLURAL/[NAMESPACE/]NAME a resource
    svc/v1/claims/NODE/{owner,fence}                the claim on a node's name, and the fence that writes compare
    ipam/v2/host/HOST                               of old programs: svc only deletes it, and `key` does not parse it

Otherwise `path` and `key` are inverse to each other. The field order of a document is that of the value's `to_json`.
"""

from collections.abc import Callable
from typing import Any

import orjson

from svc._core.cidr import Cidr
from svc.model.claim import NodeClaim, NodeFence
from svc.model.field_errors import display, json_kind
from svc.model.ipam import Affinity, Attribute, Block, Handle, IpamConfig
from svc.model.keys import (
    ALL_PLURALS,
    NAMESPACED,
    AffinityKey,
    AffinityQuery,
    BlockKey,
    BlockQuery,
    HandleKey,
    HandleQuery,
    IpamConfigKey,
    Key,
    LegacyHostKey,
    NodeClaimKey,
    NodeClaimQuery,
    NodeFenceKey,
    Query,
    ResourceKey,
    ResourceQuery,
    V_co,
)
from svc.model.resource import Resource
from svc.names import Names

Value = Block | Affinity | Handle | IpamConfig | NodeClaim | NodeFence | Resource

_KINDS = {plural: kind for kind, plural in ALL_PLURALS.items()}
_DECODERS: dict[type[Key], Callable[[Any], Value]] = {
    AffinityKey: Affinity.from_json,
    HandleKey: Handle.from_json,
    NodeClaimKey: NodeClaim.from_json,
    NodeFenceKey: NodeFence.from_json,
    IpamConfigKey: IpamConfig.from_json,
}


class Codec:
    """The paths and documents of one names profile."""

    def __init__(self, names: Names) -> None:
        group, _, version = names.api_version.partition("/")
        self._api_version = names.api_version
        self.root = f"{names.key_root}/"  # of all paths
        self._ipam = f"{names.key_root}/ipam/v2/"
        self._claims = f"{names.key_root}/svc/v1/claims/"
        self._resources = f"{names.key_root}/resources/{version}/{group}/"

    def path(self, key: Key) -> str:
        """Return the path of a key. Raise KeyError for an unknown resource kind."""
        match key:
            case ResourceKey(kind=kind, name=name, namespace=namespace):  # the most frequent keys come first
                folder = f"{ALL_PLURALS[kind]}/{namespace}" if namespace else ALL_PLURALS[kind]
                return f"{self._resources}{folder}/{name}"
            case HandleKey(handle=handle):
                return f"{self._ipam}handle/{handle}"
            case BlockKey(cidr=cidr):
                return f"{self._ipam}assignment/ipv{cidr.version}/block/{_spell(cidr)}"
            case AffinityKey(host=host, cidr=cidr, kind=kind):
                return f"{self._ipam}{kind}/{host}/ipv{cidr.version}/block/{_spell(cidr)}"
            case LegacyHostKey(host=host):
                return f"{self._ipam}host/{host}"
            case NodeClaimKey(node=node):
                return f"{self._claims}{node}/owner"
            case NodeFenceKey(node=node):
                return f"{self._claims}{node}/fence"
            case IpamConfigKey():
                return f"{self._ipam}config"
        raise TypeError(f"{key!r} is not a key")

    def key(self, path: str) -> Key | None:
        """Return the key of a path; None if it is not a path of svc or cannot be parsed."""
        if path.startswith(self._ipam):
            return _ipam_key(path[len(self._ipam) :].split("/"))
        if path.startswith(self._resources):
            return _resource_key(path[len(self._resources) :].split("/"))
        if path.startswith(self._claims):
            return _claim_key(path[len(self._claims) :].split("/"))
        return None

    def is_misnamed(self, query: Query, path: str) -> bool:
        """Return whether a path with the prefix of the query is not a key, although svc keeps only such keys there."""
        if isinstance(query, AffinityQuery):  # beside records of old programs for a host
            return "/block/" in path.removeprefix(self._ipam) and self.key(path) is None
        return not isinstance(query, NodeClaimQuery) and self.key(path) is None

    def prefix(self, query: Query) -> str:
        """Return the common prefix of all matching paths. Other paths may have it too: check them with `matches`."""
        match query:
            case BlockQuery(version=version):
                return f"{self._ipam}assignment/ipv{version}/block/" if version else f"{self._ipam}assignment/"
            case AffinityQuery(host=host, version=version, kind=kind):
                family = f"ipv{version}/block/" if version else ""
                return f"{self._ipam}{kind}/" + (f"{host}/{family}" if host else "")
            case HandleQuery():
                return f"{self._ipam}handle/"
            case NodeClaimQuery(node=node):
                return f"{self._claims}{node}/"
            case ResourceQuery(kind=kind, namespace=namespace, prefix=prefix):
                if kind in NAMESPACED:
                    return f"{self._resources}{ALL_PLURALS[kind]}/" + (f"{namespace}/{prefix}" if namespace else "")
                return f"{self._resources}{ALL_PLURALS[kind]}/{prefix}"
        raise TypeError(f"{query!r} is not a query")

    def encode(self, value: Value) -> bytes:
        """Return the document to store."""
        match value:
            case Resource():
                return orjson.dumps(value.to_json(self._api_version))
            case Block():
                return orjson.dumps(value.to_json(Attribute.encoded))
        return orjson.dumps(value.to_json())

    def decode(self, key: Key[V_co], data: bytes) -> V_co:
        """Decode the document at `key`. Raise ValueError if it is not a valid value for this key."""
        try:
            document = orjson.loads(data or b"{}")
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise ValueError(f"it is {json_kind(document)}, not an object")
        value: V_co = _decode(key, document)
        return value


def matches(query: Query, key: Key) -> bool:
    """Return True if the key matches the query."""
    match query, key:
        case BlockQuery(version=version), BlockKey(cidr=cidr):
            return version in (0, cidr.version)
        case AffinityQuery(), AffinityKey(host=host, cidr=cidr, kind=kind):
            return kind == query.kind and query.host in ("", host) and query.version in (0, cidr.version)
        case HandleQuery(), HandleKey():
            return True
        case NodeClaimQuery(), NodeClaimKey(node=node) | NodeFenceKey(node=node):
            return node == query.node
        case ResourceQuery(), ResourceKey(kind=kind, name=name, namespace=namespace):
            return kind == query.kind and query.namespace in ("", namespace) and name.startswith(query.prefix)
    return False


def _spell(cidr: Cidr) -> str:
    return str(cidr).replace("/", "-")


def _parse(family: str, spelled: str) -> Cidr | None:
    """Parse a CIDR of this family; None unless `_spell` writes it in the same way."""
    try:
        cidr = Cidr(spelled.replace("-", "/"))
    except ValueError:
        return None
    return cidr if family == f"ipv{cidr.version}" and spelled == _spell(cidr) else None


def _ipam_key(parts: list[str]) -> Key | None:
    match parts:
        case ["config"]:
            return IpamConfigKey()
        case ["handle", *handle] if any(handle):  # handles are stored verbatim and may contain slashes
            return HandleKey("/".join(handle))
        case ["assignment", family, "block", spelled]:
            cidr = _parse(family, spelled)
            return cidr and BlockKey(cidr)
        case ["host" | "virtual" as kind, host, family, "block", spelled] if host:
            cidr = _parse(family, spelled)
            return cidr and AffinityKey(host, cidr, kind)
    return None


def _claim_key(parts: list[str]) -> Key | None:
    match parts:
        case [node, "owner"] if node:
            return NodeClaimKey(node)
        case [node, "fence"] if node:
            return NodeFenceKey(node)
    return None


def _resource_key(parts: list[str]) -> Key | None:
    kind = _KINDS.get(parts[0], "")
    match parts[1:]:
        case [name] if name and kind and kind not in NAMESPACED:
            return ResourceKey(kind, name)
        case [namespace, name] if name and namespace and kind in NAMESPACED:
            return ResourceKey(kind, name, namespace)
    return None


def _decode(key: Key, data: Any) -> Any:
    match key:
        case BlockKey(cidr=cidr):
            block = Block.from_json(data)
            if block.cidr != cidr:
                raise ValueError(f"block {cidr} holds the document of block {block.cidr}")
            return block
        case ResourceKey(kind=kind):
            resource = Resource.from_json(data)
            if resource.kind != kind:
                raise ValueError(f"kind = {display(resource.kind)} is not {kind}")
            return resource
    if decode := _DECODERS.get(type(key)):
        return decode(data)
    raise ValueError("svc does not read this key")
