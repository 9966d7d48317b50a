"""Manifests: resources in YAML or JSON files of users, several to a file.

The parser keeps the text of each scalar, refuses repeated keys, and reads the types of JSON. Dates stay as they are written,
because no field has a date.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors, Written, json_kind
from svc.model.resource import Resource, label_errors

_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA = ("name", "labels", "annotations")
_TEXTS = ("metadata.name", "metadata.labels.*", "metadata.annotations.*")  # fields of type string
_FOREIGN = ("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields")  # set by the datastore; ignored
MAX_DEPTH: Final = 100  # levels of objects and arrays in a document
MAX_VALUES: Final = 1_000_000  # in a document
_TAG: Final = "tag:yaml.org,2002:"
_KINDS: Final = {  # of scalars that are not text
    f"{_TAG}int": "a number",
    f"{_TAG}float": "a number",
    f"{_TAG}bool": "a boolean",
    f"{_TAG}null": "null",
    f"{_TAG}timestamp": "a date",
}
_TAGS: Final = {*_KINDS, *(_TAG + name for name in ("str", "map", "seq", "merge"))}


class _Loader(yaml.SafeLoader):
    """Keep dates as written."""


_Loader.add_constructor(f"{_TAG}timestamp", lambda _, node: Written(node.value, "a date"))


def read(data: bytes, source: str, api_version: str, kind: str, texts: Sequence[str] = ()) -> list[Resource]:
    """Return the resources of a file, all of one kind. Raise CallerError with every error; `source` opens its message.

    `texts` are the paths of the fields of `spec` whose type is string, with "[]" for the items of an array."""
    errors = FieldErrors(source, Code.DECODING_FAILURE)
    documents = parse(data, source)
    nodes: list[tuple[str, Node]] = []
    for number, document in documents:
        prefix = f"document {number}: " if len(documents) > 1 else ""
        nodes += listed(document, f"objects of kind {kind}", prefix, errors)
    resources = []
    for prefix, node in nodes:
        check_quotes(prefix, node, texts, errors)
        resources.append(_resource(prefix, value_of(node), api_version, kind, errors))
    errors.raise_if_any()
    if not resources:
        raise CallerError(f"{source} is empty", details=f"give at least one {kind}", code=Code.DECODING_FAILURE)
    return resources


def object_at(where: str, value: Any, errors: FieldErrors) -> dict[str, Any]:
    """Return the object; an empty one for null and for other types, which are reported."""
    if isinstance(value, dict):
        return value
    if value is not None:
        errors.add(where, value, f"is {json_kind(value)}", "give an object")
    return {}


def listed(node: Node, what: str, where: str, errors: FieldErrors) -> Iterator[tuple[str, Node]]:
    """Yield the resources of an array or a List, also of Lists in it, else the node itself; each with its prefix in errors.

    `what` names the items in errors."""
    named, items = field_of(node, "kind"), field_of(node, "items")
    if isinstance(node, SequenceNode) and not where.endswith("."):
        yield from ((f"{where}[{index}].", item) for index, item in enumerate(node.value))
    elif named is None or not str(named.value).endswith("List"):
        yield where, node
    elif items is None:
        errors.missing(f"{where}items", f"a {named.value} has its resources there: give an array of {what}")
    elif not isinstance(items, SequenceNode):
        value = value_of(items)
        if value is not None:
            errors.add(f"{where}items", value, f"is {json_kind(value)}", f"give an array of {what}")
    else:
        for index, item in enumerate(items.value):
            yield from listed(item, what, f"{where}items[{index}].", errors)


def check_quotes(prefix: str, node: Node, texts: Sequence[str], errors: FieldErrors) -> None:
    """Report text without quotes that YAML reads as another type, such as a date. Show it as written.

    `texts` are the paths of the fields of `spec` whose type is string."""
    for path in (*_TEXTS, *(f"spec.{path}" for path in texts)):
        for where, value in _unquoted(node, path.replace("[]", ".[]").split(".")):
            if value.kind != "null" or not where.startswith("spec."):  # null in `spec` counts as absent
                errors.add(
                    f"{prefix}{where}", value, f"is {value.kind}", "give text" if value.kind == "null" else "put it in quotes"
                )


def _resource(prefix: str, document: Any, api_version: str, kind: str, errors: FieldErrors) -> Resource:
    if not isinstance(document, dict):
        place = prefix[:-1] if prefix.endswith(".") else f"{prefix}document"
        errors.add(place, document, f"is {json_kind(document)}", f"give an object of kind {kind}")
        return Resource(kind, {})
    for field, wanted in (("apiVersion", api_version), ("kind", kind)):
        if document.get(field, wanted) != wanted:
            errors.add(prefix + field, document[field], f"is not {wanted!r}", f"set it to {wanted}")
        elif field not in document:
            errors.missing(prefix + field, f"set it to {wanted}")
    return resource_of(prefix, document, kind, errors)


def resource_of(
    prefix: str,
    document: Mapping[str, Any],
    kind: str,
    errors: FieldErrors,
    more: Sequence[str] = (),
    ignored: Sequence[str] = (),
) -> Resource:
    """Return the resource of a document, without fields that the datastore sets.

    `more` are further fields of metadata that are kept, `ignored` those that are not."""
    refuse_unknown(prefix, document, _FIELDS, errors)
    metadata = object_at(prefix + "metadata", document.get("metadata"), errors)
    refuse_unknown(f"{prefix}metadata.", metadata, (*_METADATA, *_FOREIGN, *more, *ignored), errors)
    labels = _read_texts(f"{prefix}metadata.labels", metadata.get("labels"), errors)
    _read_texts(f"{prefix}metadata.annotations", metadata.get("annotations"), errors)
    for error in label_errors(labels):
        errors.add(f"{prefix}{error.field}", error.value, error.problem, error.remedy)
    kept = {field: metadata[field] for field in (*_METADATA, *more) if field in metadata}
    return Resource(kind, kept, object_at(prefix + "spec", document.get("spec"), errors))


def refuse_unknown(prefix: str, given: Mapping[str, Any], known: Sequence[str], errors: FieldErrors) -> None:
    """Report fields that are not `known`."""
    for field in given:
        if field not in known:
            errors.add(f"{prefix}{field}", given[field], "is not known", f"leave it out; known are {', '.join(known)}")


def _read_texts(where: str, value: Any, errors: FieldErrors) -> dict[str, Any]:
    """Return the named fields of an object. Report objects and arrays in it; `_check_quotes` reports scalars."""
    pairs: dict[Any, Any] = object_at(where, value, errors)
    for name, text in pairs.items():
        if not isinstance(name, str):
            errors.add(f"{where} key", name, f"is {json_kind(name)}", "put it in quotes")
        elif isinstance(text, dict | list):
            errors.add(f"{where}.{name}", text, f"is {json_kind(text)}", "give text")
    return {name: text for name, text in pairs.items() if isinstance(name, str)}


def parse(data: bytes, source: str) -> list[tuple[int, Node]]:
    """Return the documents that are not empty, each with its number in the file.

    Raise CallerError if they are neither YAML nor JSON, or a key is repeated."""
    try:
        numbered = enumerate(yaml.compose_all(data, _Loader), 1)
        nodes = [(number, node) for number, node in numbered if node is not None and not _is_empty(node)]
        for _, node in nodes:
            _check(node, source, set())
            _check_size(node, source)
            value_of(node)  # raises if a value cannot be constructed
    except (yaml.YAMLError, ValueError) as error:
        raise _refused(f"{source} is neither YAML nor JSON", " ".join(str(error).split())) from None
    except RecursionError:
        raise _refused(f"{source} is nested too deeply", "give resources with fewer levels of objects and arrays") from None
    return nodes


def value_of(node: Node) -> Any:
    """Return the value of a node that `parse` has returned."""
    return _Loader(b"").construct_document(node)


def field_of(node: Node, name: str) -> Node | None:
    """Return the value of a field of an object; None if it has no such field."""
    pairs = node.value if isinstance(node, MappingNode) else ()
    return next((value for key, value in reversed(pairs) if key.value == name), None)  # the last: merged ones come first


def _unquoted(node: Node, path: Sequence[str], where: str = "") -> Iterator[tuple[str, Written]]:
    """Yield path and text of each scalar at `path` that is not a string. "*" matches every field, "[]" every item."""
    if not path:
        if isinstance(node, ScalarNode) and node.tag in _KINDS:
            kind = _KINDS[node.tag]
            yield where, Written(node.value or kind, kind)
    elif path[0] == "[]":
        for index, item in enumerate(node.value if isinstance(node, SequenceNode) else ()):
            yield from _unquoted(item, path[1:], f"{where}[{index}]")
    else:
        for key, value in node.value if isinstance(node, MappingNode) else ():
            if path[0] in ("*", key.value):
                yield from _unquoted(value, path[1:], f"{where}.{key.value}" if where else str(key.value))


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == f"{_TAG}null"


def _check(node: Node, source: str, seen: set[int]) -> None:
    """Raise CallerError if an object has a key twice, or a type is not one of JSON. Check aliases once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if node.tag not in _TAGS:
        line = node.start_mark.line + 1
        raise _refused(f"{source}: line {line} has a value of type {node.tag!r}", "use the types that JSON has")
    if isinstance(node, MappingNode):
        _check_keys(node, source)
        for key, value in node.value:
            _check(key, source, seen)
            _check(value, source, seen)
    elif isinstance(node, SequenceNode):
        for item in node.value:
            _check(item, source, seen)
    elif isinstance(node, ScalarNode) and not node.value.isascii():
        _join_surrogates(node, source)


def _join_surrogates(node: ScalarNode, source: str) -> None:
    """Join the two halves of each character that JSON writes as two escapes. Raise CallerError for a half alone."""
    try:
        node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        line = node.start_mark.line + 1
        raise _refused(
            f"{source}: line {line} has half of a surrogate pair", "write both halves, or the character itself"
        ) from None


def _check_size(root: Node, source: str) -> None:
    """Raise CallerError if a document has too many levels, or too many values when its aliases are replaced."""
    sizes: dict[int, int] = {}

    def size(node: Node, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise RecursionError
        if id(node) not in sizes:
            sizes[id(node)] = 0  # of an alias of itself
            sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in _children(node))
        return sizes[id(node)]

    if size(root, 0) > MAX_VALUES:
        raise _refused(f"{source} has more than {MAX_VALUES} values with its aliases", "give fewer, in several files")


def _children(node: Node) -> Iterator[Node]:
    for item in node.value if isinstance(node, MappingNode | SequenceNode) else ():
        yield from item if isinstance(item, tuple) else (item,)


def _check_keys(node: MappingNode, source: str) -> None:
    lines: dict[Any, int] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode) or key.tag == f"{_TAG}merge":
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            places = f"in line {line}" if lines[key.value] == line else f"in lines {lines[key.value]} and {line}"
            raise _refused(f"{source}: key {key.value!r} is given twice, {places}", "keep one of them")
        lines[key.value] = line


def _refused(msg: str, details: str) -> CallerError:
    return CallerError(msg, details=details, code=Code.DECODING_FAILURE)
