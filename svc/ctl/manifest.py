"""Manifests: the resources that a user writes in YAML or JSON files, several to a file."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from svc.model.errors import CallerError, Code
from svc.model.faults import Faults, json_kind
from svc.model.resource import Resource

_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA = ("name", "labels", "annotations")
_FOREIGN = ("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields")  # the datastore's own; passed over


def read(data: bytes, source: str, api_version: str, kind: str) -> list[Resource]:
    """The resources of a file, all of one kind. CallerError naming every fault; `source` opens its message."""
    faults = Faults(source, Code.DECODING_FAILURE)
    resources = [_resource(where, document, api_version, kind, faults) for where, document in _documents(data, source)]
    faults.raise_if_any()
    if not resources:
        raise CallerError(f"{source} is empty", details=f"give at least one {kind}", code=Code.DECODING_FAILURE)
    return resources


def _documents(data: bytes, source: str) -> Iterator[tuple[str, Any]]:
    """Each document that is not empty, and what to call it; a list counts as several."""
    try:
        loaded = [document for document in yaml.safe_load_all(data) if document is not None]
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a ValueError
        message = " ".join(str(error).split())
        raise CallerError(f"{source} is neither YAML nor JSON", details=message, code=Code.DECODING_FAILURE) from None
    except RecursionError:
        raise CallerError(
            f"{source} is nested too deeply", details="give resources as YAML or JSON", code=Code.DECODING_FAILURE
        ) from None
    flat = [item for document in loaded for item in _items(document)]
    yield from ((f"document {number}" if len(flat) > 1 else "", document) for number, document in enumerate(flat, 1))


def _items(document: Any) -> list[Any]:
    """The resources of an array or of a list as API servers print it, else the document itself."""
    if isinstance(document, dict) and str(document.get("kind")).endswith("List") and isinstance(document.get("items"), list):
        return list(document["items"])
    return document if isinstance(document, list) else [document]


def _resource(where: str, document: Any, api_version: str, kind: str, faults: Faults) -> Resource:
    prefix = f"{where}: " if where else ""
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
    for name, text in _object(where, value, faults).items():
        if not isinstance(name, str) or not isinstance(text, str):
            faults.add(f"{where}.{name}", text, f"is {json_kind(text)}", "put it in quotes")
