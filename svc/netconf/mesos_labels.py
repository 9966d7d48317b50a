"""Labels of a bare container from Mesos, in the `args` of the network configuration."""

import re
from collections.abc import Iterator
from typing import Any, Final

from svc.model.field_errors import FieldErrors, json_kind
from svc.names import Names
from svc.netconf.args import OBJECT_NAME

Labels = tuple[tuple[str, str], ...]

_KEYS: Final = ("org.apache.mesos", "network_info", "labels", "labels")
_PATH: Final = 'args."org.apache.mesos".network_info.labels.labels'
_UNUSABLE: Final = re.compile(r"[^-_.a-zA-Z0-9]+")
_DOTTED: Final = re.compile(r"[.-]*\.[.-]*")


def labels_of(args: dict[str, Any] | None, names: Names, faults: FieldErrors) -> tuple[str, Labels]:
    """Return the namespace (empty unless a label names it) and the labels by key, in a form that selectors accept."""
    if not args:
        return "", ()
    given = dict(_pairs(args, faults))
    namespace = given.pop(f"{names.label_prefix}/namespace", "")
    if namespace and not OBJECT_NAME.fullmatch(namespace):
        faults.add(_PATH, namespace, "is not a namespace", "give up to 253 letters, digits, '-', '.' and '_'")
        namespace = ""
    labels = {_usable(key): _usable(value) for key, value in given.items()}
    return namespace, tuple(sorted((key, value) for key, value in labels.items() if key))


def _pairs(args: dict[str, Any], faults: FieldErrors) -> Iterator[tuple[str, str]]:
    found: Any = args
    for key in _KEYS:
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        return
    if not isinstance(found, list):
        faults.add(_PATH, found, f"is {json_kind(found)}", 'write an array of objects with "key" and "value"')
        return
    for index, item in enumerate(found):
        if isinstance(item, dict) and isinstance(item.get("key"), str) and isinstance(item.get("value"), str):
            yield item["key"], item["value"]
        else:
            faults.add(f"{_PATH}[{index}]", item, "is no label", 'write an object with "key" and "value", both strings')


def _usable(text: str) -> str:
    """Return a valid label key or value.

    Replace each slash with a dot, and each run of other invalid characters with a dash. Then reduce each run of dots and dashes
    that contains a dot to one dot, and remove dots and dashes from both ends.
    """
    return _DOTTED.sub(".", _UNUSABLE.sub("-", text.replace("/", "."))).strip("-.")
