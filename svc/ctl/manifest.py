"""Manifests: the resources that a user writes in YAML or JSON files, several to a file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yaml import Node, SequenceNode

from svc.ctl import yamls
from svc.model.errors import CallerError, Code
from svc.model.faults import Faults, json_kind
from svc.model.labels import label_faults
from svc.model.resource import Resource

_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA = ("name", "labels", "annotations")
_TEXTS = ("metadata.name", "metadata.labels.*", "metadata.annotations.*")  # fields that want text
_FOREIGN = ("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields")  # the datastore's own; passed over


def read(data: bytes, source: str, api_version: str, kind: str, texts: Sequence[str] = ()) -> list[Resource]:
    """Return the resources of a file, all of one kind. Raise CallerError naming every fault; `source` opens its message.

    `texts` are the paths of the fields of `spec` that want text, with "[]" for the items of an array."""
    faults = Faults(source, Code.DECODING_FAILURE)
    nodes = [item for node in yamls.parse(data, source) for item in _items(node, kind, faults)]
    paths = [*_TEXTS, *(f"spec.{path}" for path in texts)]
    resources = []
    for number, node in enumerate(nodes, 1):
        prefix = f"document {number}: " if len(nodes) > 1 else ""
        _check_quotes(prefix, node, paths, faults)
        resources.append(_resource(prefix, yamls.value_of(node), api_version, kind, faults))
    faults.raise_if_any()
    if not resources:
        raise CallerError(f"{source} is empty", details=f"give at least one {kind}", code=Code.DECODING_FAILURE)
    return resources


def _items(node: Node, kind: str, faults: Faults) -> list[Node]:
    """Return the resources of an array, or of a List, as API servers print it, and of those in it; else the node itself."""
    return list(node.value) if isinstance(node, SequenceNode) else list(_listed(node, kind, "", faults))


def _listed(node: Node, kind: str, where: str, faults: Faults) -> Iterator[Node]:
    named, items = yamls.field(node, "kind"), yamls.field(node, "items")
    if named is None or not str(named.value).endswith("List"):
        yield node
    elif items is None:
        faults.missing(f"{where}items", f"a {named.value} has its resources there: give an array of objects of kind {kind}")
    elif not isinstance(items, SequenceNode):
        value = yamls.value_of(items)
        if value is not None:
            faults.add(f"{where}items", value, f"is {json_kind(value)}", f"give an array of objects of kind {kind}")
    else:
        for index, item in enumerate(items.value):
            yield from _listed(item, kind, f"{where}items[{index}].", faults)


def _check_quotes(prefix: str, node: Node, paths: Sequence[str], faults: Faults) -> None:
    """Text that looks like another type of YAML, such as a date, is shown as written."""
    for path in paths:
        for where, value in yamls.unquoted(node, path.replace("[]", ".[]").split(".")):
            if value.kind != "null" or not where.startswith("spec."):  # a field of spec that is null counts as left out
                faults.add(
                    f"{prefix}{where}", value, f"is {value.kind}", "give text" if value.kind == "null" else "put it in quotes"
                )


def _resource(prefix: str, document: Any, api_version: str, kind: str, faults: Faults) -> Resource:
    if not isinstance(document, dict):
        faults.add(prefix + "document", document, f"is {json_kind(document)}", f"give an object of kind {kind}")
        return Resource(kind, {})
    for field, wanted in (("apiVersion", api_version), ("kind", kind)):
        if document.get(field, wanted) != wanted:
            faults.add(prefix + field, document[field], f"is not {wanted!r}", f"set it to {wanted}")
        elif field not in document:
            faults.missing(prefix + field, f"set it to {wanted}")
    _refuse_unknown(prefix, document, _FIELDS, faults)
    metadata = _object(prefix + "metadata", document.get("metadata"), faults)
    _refuse_unknown(f"{prefix}metadata.", metadata, (*_METADATA, *_FOREIGN), faults)
    for field in ("labels", "annotations"):
        _check_texts(f"{prefix}metadata.{field}", metadata.get(field), faults)
    _check_labels(prefix, metadata.get("labels"), faults)
    kept = {field: metadata[field] for field in _METADATA if field in metadata}
    return Resource(kind, kept, _object(prefix + "spec", document.get("spec"), faults))


def _refuse_unknown(prefix: str, given: Mapping[str, Any], known: tuple[str, ...], faults: Faults) -> None:
    for field in given:
        if field not in known:
            faults.add(f"{prefix}{field}", given[field], "is not known", f"leave it out; known are {', '.join(known)}")


def _object(where: str, value: Any, faults: Faults) -> dict[str, Any]:
    """Nothing counts as an empty one."""
    if isinstance(value, dict):
        return value
    if value is not None:
        faults.add(where, value, f"is {json_kind(value)}", "give an object")
    return {}


def _check_texts(where: str, value: Any, faults: Faults) -> None:
    """Objects and arrays; `_check_quotes` has found the scalars."""
    pairs: dict[Any, Any] = _object(where, value, faults)
    for name, text in pairs.items():
        if not isinstance(name, str):
            faults.add(f"{where} key", name, f"is {json_kind(name)}", "put it in quotes")
        elif isinstance(text, dict | list):
            faults.add(f"{where}.{name}", text, f"is {json_kind(text)}", "give text")


def _check_labels(prefix: str, labels: Any, faults: Faults) -> None:
    named = {key: value for key, value in labels.items() if isinstance(key, str)} if isinstance(labels, dict) else {}
    for fault in label_faults(named):
        faults.add(f"{prefix}{fault.field}", fault.value, fault.problem, fault.remedy)
