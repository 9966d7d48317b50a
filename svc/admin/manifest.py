"""Manifests: resources in YAML or JSON files of users, several to a file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yaml import Node, SequenceNode

from svc.admin import yaml_nodes
from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors, json_kind
from svc.model.labels import label_faults
from svc.model.resource import Resource

_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA = ("name", "labels", "annotations")
_TEXTS = ("metadata.name", "metadata.labels.*", "metadata.annotations.*")  # fields of type string
_FOREIGN = ("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields")  # set by the datastore; ignored


def read(data: bytes, source: str, api_version: str, kind: str, texts: Sequence[str] = ()) -> list[Resource]:
    """Return the resources of a file, all of one kind. Raise CallerError naming every fault; `source` opens its message.

    `texts` are the paths of the fields of `spec` whose type is string, with "[]" for the items of an array."""
    faults = FieldErrors(source, Code.DECODING_FAILURE)
    nodes = [item for node in yaml_nodes.parse(data, source) for item in _items(node, kind, faults)]
    paths = [*_TEXTS, *(f"spec.{path}" for path in texts)]
    resources = []
    for number, node in enumerate(nodes, 1):
        prefix = f"document {number}: " if len(nodes) > 1 else ""
        _check_quotes(prefix, node, paths, faults)
        resources.append(_resource(prefix, yaml_nodes.value_of(node), api_version, kind, faults))
    faults.raise_if_any()
    if not resources:
        raise CallerError(f"{source} is empty", details=f"give at least one {kind}", code=Code.DECODING_FAILURE)
    return resources


def object_at(where: str, value: Any, faults: FieldErrors) -> dict[str, Any]:
    """Return the object; an empty one for null and for other types, which are reported."""
    if isinstance(value, dict):
        return value
    if value is not None:
        faults.add(where, value, f"is {json_kind(value)}", "give an object")
    return {}


def _items(node: Node, kind: str, faults: FieldErrors) -> list[Node]:
    """Return the resources of an array, or of a List, also of Lists in it; else the node itself."""
    return list(node.value) if isinstance(node, SequenceNode) else list(_listed(node, kind, "", faults))


def _listed(node: Node, kind: str, where: str, faults: FieldErrors) -> Iterator[Node]:
    named, items = yaml_nodes.field(node, "kind"), yaml_nodes.field(node, "items")
    if named is None or not str(named.value).endswith("List"):
        yield node
    elif items is None:
        faults.missing(f"{where}items", f"a {named.value} has its resources there: give an array of objects of kind {kind}")
    elif not isinstance(items, SequenceNode):
        value = yaml_nodes.value_of(items)
        if value is not None:
            faults.add(f"{where}items", value, f"is {json_kind(value)}", f"give an array of objects of kind {kind}")
    else:
        for index, item in enumerate(items.value):
            yield from _listed(item, kind, f"{where}items[{index}].", faults)


def _check_quotes(prefix: str, node: Node, paths: Sequence[str], faults: FieldErrors) -> None:
    """Report text without quotes that YAML reads as another type, such as a date. Show it as written."""
    for path in paths:
        for where, value in yaml_nodes.unquoted(node, path.replace("[]", ".[]").split(".")):
            if value.kind != "null" or not where.startswith("spec."):  # null in `spec` counts as absent
                faults.add(
                    f"{prefix}{where}", value, f"is {value.kind}", "give text" if value.kind == "null" else "put it in quotes"
                )


def _resource(prefix: str, document: Any, api_version: str, kind: str, faults: FieldErrors) -> Resource:
    if not isinstance(document, dict):
        faults.add(prefix + "document", document, f"is {json_kind(document)}", f"give an object of kind {kind}")
        return Resource(kind, {})
    for field, wanted in (("apiVersion", api_version), ("kind", kind)):
        if document.get(field, wanted) != wanted:
            faults.add(prefix + field, document[field], f"is not {wanted!r}", f"set it to {wanted}")
        elif field not in document:
            faults.missing(prefix + field, f"set it to {wanted}")
    _refuse_unknown(prefix, document, _FIELDS, faults)
    metadata = object_at(prefix + "metadata", document.get("metadata"), faults)
    _refuse_unknown(f"{prefix}metadata.", metadata, (*_METADATA, *_FOREIGN), faults)
    for field in ("labels", "annotations"):
        _check_texts(f"{prefix}metadata.{field}", metadata.get(field), faults)
    _check_labels(prefix, metadata.get("labels"), faults)
    kept = {field: metadata[field] for field in _METADATA if field in metadata}
    return Resource(kind, kept, object_at(prefix + "spec", document.get("spec"), faults))


def _refuse_unknown(prefix: str, given: Mapping[str, Any], known: tuple[str, ...], faults: FieldErrors) -> None:
    for field in given:
        if field not in known:
            faults.add(f"{prefix}{field}", given[field], "is not known", f"leave it out; known are {', '.join(known)}")


def _check_texts(where: str, value: Any, faults: FieldErrors) -> None:
    """Report objects and arrays; `_check_quotes` reports scalars."""
    pairs: dict[Any, Any] = object_at(where, value, faults)
    for name, text in pairs.items():
        if not isinstance(name, str):
            faults.add(f"{where} key", name, f"is {json_kind(name)}", "put it in quotes")
        elif isinstance(text, dict | list):
            faults.add(f"{where}.{name}", text, f"is {json_kind(text)}", "give text")


def _check_labels(prefix: str, labels: Any, faults: FieldErrors) -> None:
    named = {key: value for key, value in labels.items() if isinstance(key, str)} if isinstance(labels, dict) else {}
    for fault in label_faults(named):
        faults.add(f"{prefix}{fault.field}", fault.value, fault.problem, fault.remedy)
