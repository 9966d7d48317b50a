"""Nodes of Kubernetes. svc reads their labels and annotations, and writes only the annotations about a node's tunnels."""

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import orjson

from svc.datastore.api import Create, Delete, Entry, NotFound, StoreError, Update
from svc.datastore.orch.client import STRATEGIC_PATCH, segment
from svc.datastore.orch.resource_store import Collection, ResourceStore, revision_of, updated, write_verified
from svc.model.keys import Key, Query, ResourceKey
from svc.model.kv_codec import Value
from svc.model.node_annotations import SPEC, TUNNELS
from svc.model.resource import Resource, ordered
from svc.names import Names

Json = dict[str, Any]

KIND = "Node"
_NODES = "/api/v1/nodes"

_STATUS = (("WireguardPublicKey", "wireguardPublicKey"), ("WireguardPublicKeyV6", "wireguardPublicKeyV6"))
_KEPT = ("name", "uid", "creationTimestamp", "deletionTimestamp")


class NodeStore(ResourceStore):
    """Nodes of one cluster."""

    def get(self, key: Key) -> Entry:
        assert isinstance(key, ResourceKey)
        node = self._object(f"{_NODES}/{segment(key.name)}")
        if node is None:
            remedy = "see `kubectl get nodes`, and set `nodename` in the network configuration to the name there"
            raise NotFound(key, remedy=remedy)
        return Entry(key, node_resource(self._names, node), revision_of(node))

    def collection(self, query: Key | Query) -> Collection:  # noqa: ARG002 all nodes are in one collection
        return Collection(_NODES, self._read, fingerprint=self._fingerprint)

    def write(self, write: Create | Update | Delete) -> Entry:
        """Write the annotations about tunnels. Raise StoreError for any other change."""
        assert isinstance(write.key, ResourceKey)
        name = write.key.name
        if isinstance(write, Update):
            node = self._object(f"{_NODES}/{segment(name)}")
            if node is None:
                raise NotFound(write.key)
            changes = _tunnel_changes(node_resource(self._names, node).spec, write.value.spec)
            if changes:  # an unchanged node is refused, too: deletions test by it who owns the node
                return self._annotate(write, {f"{self._names.label_prefix}/{note}": text for note, text in changes.items()})
        raise StoreError(
            f"node {name!r} belongs to Kubernetes",
            details=f"change it there: kubectl label node {name} KEY=VALUE, or kubectl delete node {name}",
        )

    def _annotate(self, write: Update, annotations: Json) -> Entry:
        key = write.key
        assert isinstance(key, ResourceKey)
        path = f"{_NODES}/{segment(key.name)}"
        body = {"metadata": {"annotations": annotations, "resourceVersion": write.revision}}
        send = partial(self._client.patch, f"{path}/status", body, STRATEGIC_PATCH)

        def is_applied(node: Json) -> bool:
            present = node["metadata"].get("annotations") or {}
            return all(present.get(name) == text for name, text in annotations.items())

        node = write_verified(key, send, lambda: updated(key, self._object(path), write.revision, is_applied))
        return Entry(key, node_resource(self._names, node), revision_of(node))

    def _read(self, node: Json) -> Iterator[tuple[Key, Value]]:
        resource = node_resource(self._names, node)
        yield ResourceKey(KIND, resource.name), resource

    def _fingerprint(self, node: Json) -> Hashable:
        """Return the parts of a node that its resource uses. The status of a node changes often without them."""
        resource = node_resource(self._names, {"metadata": node["metadata"]})
        return repr((resource.labels, resource.spec, resource.status, resource.metadata.get("annotations")))


def node_resource(names: Names, node: Json) -> Resource:
    """Return the resource of a Kubernetes node. Unreadable annotations count as missing. Raise KeyError without metadata."""
    metadata = node["metadata"]
    notes = {
        name.removeprefix(f"{names.label_prefix}/"): text
        for name, text in (metadata.get("annotations") or {}).items()
        if name.startswith(f"{names.label_prefix}/")
    }
    labels = _texts(notes.get("labels")) | (metadata.get("labels") or {})
    kept = {name: metadata[name] for name in _KEPT if metadata.get(name)}
    shown = ordered(kept | {"labels": labels, "annotations": _texts(notes.get("annotations"))})
    return Resource(KIND, shown, _spec(names, node, notes), _status(node, notes))


def _tunnel_changes(before: Json, after: Json) -> Json | None:
    """Return the annotations to write, None for those to remove; None if more than them is changed."""
    texts = [
        {note: ((spec.get(section) or {}) if section else spec).get(name) for note, section, name in TUNNELS}
        for spec in (before, after)
    ]
    if _without_tunnels(before) != _without_tunnels(after):
        return None
    return {note: text for note, text in texts[1].items() if text != texts[0][note]}


def _without_tunnels(spec: Json) -> Json:
    """Return a specification without the fields about tunnels, and without sections that are empty then."""
    rest = {name: dict(part) if isinstance(part, dict) else part for name, part in spec.items()}
    for _, section, name in TUNNELS:
        (rest.get(section, {}) if section else rest).pop(name, None)
    return {name: part for name, part in rest.items() if part not in ({}, None)}


def _spec(names: Names, node: Json, notes: dict[str, str]) -> Json:
    spec: Json = {}
    for note, section, field in SPEC:
        if text := notes.get(note):
            part = spec.setdefault(section, {}) if section else spec
            part[field] = int(text) if field == "asNumber" and text.isdigit() else text
    spec["orchRefs"] = [{"nodeName": node["metadata"]["name"], "orchestrator": names.orchestrator}]
    if addresses := _addresses(names, node, spec.get("bgp") or {}):
        spec["addresses"] = addresses
    if interfaces := _loaded(notes.get("Interfaces"), []):
        spec["interfaces"] = interfaces
    return spec


def _addresses(names: Names, node: Json, bgp: Json) -> list[Json]:
    kind = f"{names.plugin.capitalize()}NodeIP"  # the type of addresses that BGP uses
    own = [{"address": bgp[field], "type": kind} for field in ("ipv4Address", "ipv6Address") if field in bgp]
    given = (node.get("status") or {}).get("addresses") or ()
    return own + [
        {"address": item["address"], "type": item["type"]} for item in given if item.get("type") in ("InternalIP", "ExternalIP")
    ]


def _status(node: Json, notes: dict[str, str]) -> Json:
    status = {field: notes[note] for note, field in _STATUS if notes.get(note)}
    ranges = (node.get("spec") or {}).get("podCIDRs")
    return status | ({"podCIDRs": ranges} if ranges else {})


def _texts(text: str | None) -> dict[str, str]:
    """Return the texts in the JSON object of an annotation: labels and annotations can be nothing else."""
    return {name: value for name, value in _loaded(text, {}).items() if isinstance(value, str)}


def _loaded(text: str | None, default: Any) -> Any:
    """Return the JSON value of an annotation; the default if it is missing, malformed or of another type.

    The default also replaces a value that is nested too deeply to be written. Any program with the rights of the node sets it.
    """
    try:
        found = orjson.loads(text or "null")
        orjson.dumps(found)
    except (ValueError, TypeError):
        return default
    return found if isinstance(found, type(default)) else default
