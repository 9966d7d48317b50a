"""Parser of YAML and JSON documents that keeps the text of each scalar and refuses repeated keys.

It reads the types of JSON, and dates as they are written, because no field has a date.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from svc.model.errors import CallerError, Code
from svc.model.field_errors import Written

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


def parse(data: bytes, source: str) -> list[Node]:
    """Return the documents that are not empty. Raise CallerError if they are neither YAML nor JSON, or a key is repeated."""
    try:
        loader = _Loader(data)
        nodes = list(_documents(loader))
        for node in nodes:
            _check(node, source, set())
            loader.construct_document(node)  # raise for values that cannot be constructed
    except (yaml.YAMLError, ValueError) as error:
        raise _refused(f"{source} is neither YAML nor JSON", " ".join(str(error).split())) from None
    except RecursionError:
        raise _refused(f"{source} is nested too deeply", "give resources as YAML or JSON") from None
    return nodes


def value_of(node: Node) -> Any:
    """Return the value of a node of `parse`."""
    return _Loader(b"").construct_document(node)


def field(node: Node, name: str) -> Node | None:
    """Return the node of an object's field; None if there is none."""
    pairs = node.value if isinstance(node, MappingNode) else ()
    return next((value for key, value in reversed(pairs) if key.value == name), None)  # the last: merged ones come first


def unquoted(node: Node, path: Sequence[str], where: str = "") -> Iterator[tuple[str, Written]]:
    """Yield path and text of each scalar at `path` that is not a string. "*" matches every field, "[]" every item."""
    if not path:
        if isinstance(node, ScalarNode) and node.tag in _KINDS:
            kind = _KINDS[node.tag]
            yield where, Written(node.value or kind, kind)
    elif path[0] == "[]":
        for index, item in enumerate(node.value if isinstance(node, SequenceNode) else ()):
            yield from unquoted(item, path[1:], f"{where}[{index}]")
    else:
        for key, value in node.value if isinstance(node, MappingNode) else ():
            if path[0] in ("*", key.value):
                yield from unquoted(value, path[1:], f"{where}.{key.value}" if where else str(key.value))


def _documents(loader: _Loader) -> Iterator[Node]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None and not _is_empty(node):
            yield node


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
