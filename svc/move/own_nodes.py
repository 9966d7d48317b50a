"""Nodes of a move. Kubernetes has its own, which get the addresses of their tunnels; a key-value store gets those it lacks."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from svc.admin.ipam_check.observation import Place
from svc.admin.resources import NODE
from svc.datastore.api import Create, Entry
from svc.model.keys import Key, ResourceKey, ResourceQuery
from svc.model.kv_codec import Value
from svc.model.node_annotations import TUNNELS
from svc.model.resource import Resource, ordered
from svc.move.convert import Form
from svc.move.writing import Writer
from svc.values import replace

Json = dict[str, Any]

_MERGE: Final = "application/merge-patch+json"


def move(form: Form, documents: Mapping[Key, Value], target: Place) -> None:
    """Give each node in the target the addresses of its tunnels. Create the Nodes that a key-value store lacks."""
    for key, node, entry in _differing(form, documents, target):
        if form.in_kubernetes:
            assert entry is not None
            _annotate(target, entry.value, _tunnels(node))
        elif entry is None:
            target.backend.write([Create(key, node)], durable=True)
        else:
            target.backend.update(key, partial(_with_tunnels, node), durable=True)


def compare(form: Form, documents: Mapping[Key, Value], target: Place) -> list[str]:
    """Return the nodes that are missing in the target, or have other addresses at their tunnels."""
    return [f"node {key.name}" for key, _, _ in _differing(form, documents, target)]


def restore(form: Form, documents: Mapping[Key, Value], target: Place) -> None:
    """Make the nodes as they are in an archive of the target."""
    if form.in_kubernetes:
        move(form, documents, target)
        return
    nodes = {key: value for key, value in documents.items() if isinstance(value, Resource) and value.kind == NODE}
    present: dict[Key, Entry] = {entry.key: entry for entry in target.backend.list(ResourceQuery(NODE))}
    writer = Writer(form, target)
    writer.write(list(nodes.items()), present)
    writer.delete([entry for key, entry in present.items() if key not in nodes])


def clear(target: Place) -> None:
    """Remove the addresses of tunnels from the nodes of a Kubernetes API."""
    if not target.pods_are_endpoints:
        return
    for entry in target.backend.list(ResourceQuery(NODE)):
        if _tunnels(entry.value):
            _annotate(target, entry.value, {})


def _differing(
    form: Form, documents: Mapping[Key, Value], target: Place
) -> Iterator[tuple[ResourceKey, Resource, Entry | None]]:
    """Yield the nodes to write, with their names in the target, and their entries there.

    Those of Kubernetes that the source does not know lose the addresses of an earlier time."""
    present = {entry.value.name: entry for entry in target.backend.list(ResourceQuery(NODE))}
    unknown = dict(present) if form.in_kubernetes else {}
    for node in documents.values():
        if isinstance(node, Resource) and node.kind == NODE:
            name = form.nodes.of(node.name)
            entry = present.get(name)
            unknown.pop(name, None)
            if (entry is None and not form.in_kubernetes) or (entry and _tunnels(entry.value) != _tunnels(node)):
                renamed = replace(node, metadata=ordered(node.metadata | {"name": name}))
                yield ResourceKey(NODE, name), renamed, entry
    for name, entry in unknown.items():
        if _tunnels(entry.value):
            yield ResourceKey(NODE, name), Resource(NODE, {"name": name}), entry


def _annotate(target: Place, node: Resource, tunnels: Mapping[str, str]) -> None:
    """Write the annotations about tunnels to the node with this UID."""
    assert target.client is not None
    notes = {f"{target.names.label_prefix}/{note}": tunnels.get(note) for note, _, _ in TUNNELS}
    body = {"metadata": {"uid": node.metadata["uid"], "annotations": notes}}
    target.client.patch(f"/api/v1/nodes/{node.name}", body, _MERGE)


def _section(node: Resource, section: str) -> Json:
    found = node.spec.get(section) if section else node.spec
    return found if isinstance(found, dict) else {}


def _tunnels(node: Resource) -> dict[str, str]:
    """Return the addresses of a node's tunnels, by annotation."""
    return {note: str(text) for note, section, field in TUNNELS if (text := _section(node, section).get(field))}


def _with_tunnels(other: Resource, node: Resource | None) -> Resource | None:
    """Return a node with the addresses of another one's tunnels."""
    if node is None:
        return None
    wanted, spec = _tunnels(other), dict(node.spec)
    for note, section, field in TUNNELS:
        part = dict(_section(node, section)) if section else spec
        part.pop(field, None)
        part |= {field: wanted[note]} if note in wanted else {}
        if section and (part or section in spec):
            spec[section] = part
    return replace(node, spec=spec)
