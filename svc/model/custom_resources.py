"""Custom resources of the Kubernetes API for keys and values: names, labels and JSON objects.

Blocks, affinities, handles and the IPAM settings are cluster-wide objects, one kind each. Their `spec` is nearly the document
of a key-value store. A resource is an object of its own kind. `encode` and `decode` are inverse to each other.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

from svc._core.cidr import Cidr
from svc.model import json_fields, keys
from svc.model.ipam import Affinity, Block, Handle, IpamConfig
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey, Key, Query, ResourceKey
from svc.model.kv_codec import Value
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource

Json = dict[str, Any]

BLOCK, AFFINITY, HANDLE = "IPAMBlock", "BlockAffinity", "IPAMHandle"
CONFIG = {True: "IPAMConfig", False: "IPAMConfiguration"}  # in a backing group, in a plain group
CORE = frozenset({"Node", "WorkloadEndpoint", "Profile"})  # derived from Kubernetes' own objects
CONFIG_NAME = "default"

_MAX_NAME = 253  # characters of an object's name, exclusive
_HASHED = 11  # hex digits at the end of a shortened name
_HASHED_HANDLE = 32  # hex digits at the end of a handle's name
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")  # RFC 1123
_KINDS: dict[type, str] = {
    BlockKey: BLOCK,
    keys.BlockQuery: BLOCK,
    AffinityKey: AFFINITY,
    keys.AffinityQuery: AFFINITY,
    HandleKey: HANDLE,
    keys.HandleQuery: HANDLE,
}
_CONFIG_NAMES = {"strict_affinity": "strictAffinity", "auto_allocate_blocks": "autoAllocateBlocks"}  # of the key-value form
_OF_AFFINITIES = frozenset({"state", "node", "type", "cidr", "deleted"})


def kind_plural(kind: str) -> str:
    """Return the plural as in API paths: lower case."""
    return f"{kind.lower()}s" if not kind.endswith("y") else f"{kind[:-1].lower()}ies"


def block_name(cidr: Cidr) -> str:
    """Return the name of a block's object."""
    return str(cidr).replace(".", "-", 3).replace(":", "-", 7).replace("/", "-", 1)


def affinity_name(host: str, cidr: Cidr) -> str:
    """Return the name of an affinity's object: host and block. A host that makes it too long is cut, and a hash is appended."""
    block = block_name(cidr)
    name = f"{host}-{block}"
    if len(name) < _MAX_NAME:
        return name
    digest = hashlib.sha256(f"{host}{block}".encode()).hexdigest()[:_HASHED]
    return f"{host[: _MAX_NAME - 1 - len(block) - _HASHED - 2]}-{block}-{digest}"


def handle_name(handle: str) -> str:
    """Return the name of a handle's object: the handle in lower case if that is a valid name, else its valid part and a hash.

    A name with a hash has no dot, so it cannot be the name of another handle NETWORK.CONTAINER.
    """
    name = handle.lower()
    if len(name) <= _MAX_NAME and _OBJECT_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(handle.encode()).hexdigest()[:_HASHED_HANDLE]
    readable = re.sub("[^a-z0-9]+", "-", name)[: _MAX_NAME - 1 - len(digest)].strip("-")
    return f"{readable}-{digest}".lstrip("-")


def host_hash(host: str) -> str:
    """Return a hash of a host's name that fits into a label value."""
    return base64.b32encode(hashlib.sha3_256(host.encode()).digest()).decode().rstrip("=")


class CustomResourceCodec:
    """Keys and values as the objects of one API group."""

    def __init__(self, group: ApiGroup) -> None:
        self.group = group
        self._label = group.names.label_prefix
        self._config = CONFIG[group.is_backing]
        self._decoders: dict[str, Callable[[Json], tuple[Key, Value]]] = {
            BLOCK: _decode_block,
            AFFINITY: _decode_affinity,
            HANDLE: _decode_handle,
            self._config: _decode_config,
        }

    def kind(self, key: Key | Query) -> str:
        if isinstance(key, ResourceKey | keys.ResourceQuery):
            return key.kind
        kind = self._config if isinstance(key, IpamConfigKey) else _KINDS.get(type(key))
        if kind is None:
            raise TypeError(f"no object is made of {key}")
        return kind

    def name(self, key: Key) -> str:
        """Return the name of the key's object."""
        match key:
            case BlockKey(cidr=cidr):
                return block_name(cidr)
            case AffinityKey(host=host, cidr=cidr):
                return affinity_name(host, cidr)
            case HandleKey(handle=handle):
                return handle_name(handle)
            case IpamConfigKey():
                return CONFIG_NAME
            case ResourceKey(name=name):
                return name
        raise TypeError(f"no object is made of {key}")

    def selector(self, query: Query) -> str:
        """Return a label selector that excludes most objects that do not match the query; empty if no selector applies."""
        if not isinstance(query, keys.AffinityQuery) or not query.host:
            return ""
        wanted = {"affinity-type": query.kind, "hostname-hash": host_hash(query.host)}
        if query.version:
            wanted["ip-version"] = str(query.version)
        return ",".join(f"{self._label}/{name}={value}" for name, value in wanted.items())

    @property
    def unlabelled(self) -> str:
        """Return the label selector of affinities without labels, which older programs have written."""
        return f"!{self._label}/affinity-type"

    def encode(self, key: Key, value: Value, revision: str | None = None) -> Json:
        """Return the object to create, or to write over the one at `revision`."""
        metadata: Json = {"name": self.name(key)} | self.group.wrap(self._metadata(key, value))
        if revision is not None:
            metadata["resourceVersion"] = revision
        made: Json = {"apiVersion": self.group.api_version, "kind": self.kind(key), "metadata": metadata}
        made["spec"] = self._spec(key, value)
        if isinstance(value, Resource) and value.status is not None:  # without a status subresource it would otherwise be lost
            made["status"] = value.status
        return made

    def decode(self, kind: str, data: Json) -> tuple[Key, Value]:
        """Return key and value of an object. Raise ValueError if the object is not valid for its kind."""
        try:
            if decoder := self._decoders.get(kind):
                return decoder(data["spec"])
            return self._decode_resource(kind, data)
        except (KeyError, TypeError, AttributeError) as error:  # a field is missing or has another type
            raise ValueError(f"malformed object of kind {kind}: {type(error).__name__} {error}") from None

    def tombstone(self, key: AffinityKey | HandleKey, revision: str) -> Json:
        """Return the object that marks an affinity or handle as deleted, with the fields that its schema requires."""
        value: Value = Handle({}, True) if isinstance(key, HandleKey) else Affinity("pendingDeletion", True)
        return self.encode(key, value, revision)

    def with_labels(self, key: AffinityKey, data: Json) -> Json:
        """Return the object of an affinity with the labels that queries select by. Other labels and annotations stay."""
        parts, found = ("labels", "annotations"), data["metadata"]
        own = self.group.unwrap(found)
        kept: Json = {part: own[part] for part in parts if own.get(part)}
        wrapped = self.group.wrap({**kept, "labels": {**kept.get("labels", {}), **self._labels(key)}})
        return data | {"metadata": found | {part: (found.get(part) or {}) | wrapped.get(part, {}) for part in parts}}

    def _metadata(self, key: Key, value: Value) -> Json:
        if isinstance(value, Resource):
            return value.metadata
        return {"labels": self._labels(key)} if isinstance(key, AffinityKey) else {}

    def _labels(self, key: AffinityKey) -> dict[str, str]:
        return {
            f"{self._label}/affinity-type": key.kind,
            f"{self._label}/hostname-hash": host_hash(key.host),
            f"{self._label}/ip-version": str(key.cidr.version),
        }

    def _spec(self, key: Key, value: Value) -> Json:
        match key, value:
            case _, Block():
                return _block_spec(value)
            case AffinityKey(host=host, cidr=cidr, kind=kind), Affinity(state=state, deleted=deleted, extra=extra):
                mark = str(deleted).lower() if self.group.is_backing else deleted
                return {"state": state, "node": host, "type": kind, "cidr": str(cidr), "deleted": mark, **(extra or {})}
            case HandleKey(handle=handle), Handle():
                return {"handleID": handle, **value.to_json()}
            case _, IpamConfig():
                return dict.fromkeys(_CONFIG_NAMES.values(), False) | _renamed(value.to_json(), _CONFIG_NAMES)
            case _, Resource():
                return value.spec
        raise TypeError(f"a {type(value).__name__} cannot be kept at {key}")

    def _decode_resource(self, kind: str, data: Json) -> tuple[Key, Value]:
        parts = {name: data.get(name) for name in ("spec", "status")}
        resource = Resource.from_json({"kind": kind, "metadata": self.group.unwrap(data["metadata"]), **parts})
        return ResourceKey(kind, resource.name, resource.namespace if kind in keys.NAMESPACED else ""), resource


def is_marked(data: Json) -> bool:
    """Return True if the object has the tombstone of a block, affinity or handle. It counts as deleted."""
    return (data.get("spec") or {}).get("deleted") in (True, "true")


def _block_spec(block: Block) -> Json:
    spec = block.to_json()
    claimed = spec.pop("affinity_claim_time", None)
    if claimed:
        spec["affinityClaimTime"] = claimed
    if block.affinity is None:
        del spec["affinity"]
    spec["attributes"] = spec["attributes"] or []
    spec["strictAffinity"] = False  # the schema requires it, but no program reads it
    return spec


def _decode_block(spec: Json) -> tuple[Key, Value]:
    block = Block.from_json(_renamed(spec, {"affinityClaimTime": "affinity_claim_time"}, drop="strictAffinity"))
    return BlockKey(block.cidr), block


def _decode_affinity(spec: Json) -> tuple[Key, Value]:
    cidr, kind = Cidr(json_fields.required_text(spec, "cidr")), json_fields.text(spec, "type") or "host"
    extra = json_fields.unknown(spec, _OF_AFFINITIES)
    value = Affinity.from_json({"state": spec.get("state"), "deleted": spec.get("deleted") in (True, "true")} | (extra or {}))
    return AffinityKey(json_fields.required_text(spec, "node"), cidr, kind), value


def _decode_handle(spec: Json) -> tuple[Key, Value]:
    return HandleKey(json_fields.required_text(spec, "handleID")), Handle.from_json(_renamed(spec, {}, drop="handleID"))


def _decode_config(spec: Json) -> tuple[Key, Value]:
    return IpamConfigKey(), IpamConfig.from_json(_renamed(spec, {name: stored for stored, name in _CONFIG_NAMES.items()}))


def _renamed(fields: Json, names: dict[str, str], drop: str = "") -> Json:
    return {names.get(name, name): value for name, value in fields.items() if name != drop}
