"""What a runtime tells of the container.

CNI_ARGS has the pod's identity and a requested address. The `args` of the network configuration have the Mesos labels of a
bare container.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc._core.cidr import Address
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors, json_kind
from svc.names import Names
from svc.values import dataclass, field

# Key in the spelling of runtimes, to attribute.
KEYS: Final[Mapping[str, str]] = {
    "IP": "ip",
    "K8S_POD_NAME": "pod_name",
    "K8S_POD_NAMESPACE": "pod_namespace",
    "K8S_POD_INFRA_CONTAINER_ID": "pod_infra_container_id",
    "K8S_POD_UID": "pod_uid",
    "IgnoreUnknown": "ignore_unknown",
}
BOOLEANS: Final = {"1": True, "true": True, "0": False, "false": False}

OBJECT_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,252}")  # part of datastore keys, so without '/'

Labels = tuple[tuple[str, str], ...]

_KEYS: Final = ("org.apache.mesos", "network_info", "labels", "labels")
_PATH: Final = 'args."org.apache.mesos".network_info.labels.labels'
_UNUSABLE: Final = re.compile(r"[^-_.a-zA-Z0-9]+")
_DOTTED: Final = re.compile(r"[.-]*\.[.-]*")


@dataclass(frozen=True, slots=True)
class Args:
    """Parsed CNI_ARGS. `others` are unknown pairs. `pod_name` and `pod_namespace` are both set or both empty."""

    ip: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    pod_infra_container_id: str = ""
    pod_uid: str = ""
    ignore_unknown: bool = False
    others: dict[str, str] = field(default_factory=dict)


def parse_args(text: str, *, ignore_unknown: bool = False, lenient: bool = False) -> Args:
    """Parse CNI_ARGS. Raise CallerError that lists all field errors. The last of equal keys counts.

    `ignore_unknown` is the default of IgnoreUnknown. `lenient` is for a DEL: invalid pairs are ignored.
    """
    errors = FieldErrors("invalid CNI_ARGS", Code.INVALID_ENVIRONMENT)
    pairs = _pairs(text, errors)
    known = {KEYS[key]: value for key, value in pairs.items() if key in KEYS}
    others = {key: value for key, value in pairs.items() if key not in KEYS}
    ignore = _boolean(known.pop("ignore_unknown", ""), ignore_unknown, errors)
    if not ignore:
        remedy = f"leave it out, add IgnoreUnknown=true, or use one of {', '.join(KEYS)}"
        for key, value in others.items():
            errors.add(f"CNI_ARGS {key}", value, "is not known", remedy)
    known["ip"] = _address(known.get("ip", ""), errors)
    known |= _pod(known, errors)
    if not lenient:
        errors.raise_if_any()
    return Args(**known, ignore_unknown=ignore, others=others)


def pod_in(text: str) -> str:
    """Return NAMESPACE/NAME of the pod for a log line; empty if the text names no pod. The rest is not validated."""
    if not text:
        return ""
    pairs = dict(pair.partition("=")[::2] for pair in text.split(";"))
    namespace, name = pairs.get("K8S_POD_NAMESPACE", ""), pairs.get("K8S_POD_NAME", "")
    return f"{namespace}/{name}" if OBJECT_NAME.fullmatch(namespace) and OBJECT_NAME.fullmatch(name) else ""


def _pairs(text: str, errors: FieldErrors) -> dict[str, str]:
    pairs = {}
    for pair in text.split(";") if text else ():
        key, separator, value = pair.partition("=")
        if separator and "=" not in value:
            pairs[key] = value
        else:
            errors.add("CNI_ARGS", pair, "is not a pair", "write KEY=VALUE;KEY=VALUE, without '=' in a value and a final ';'")
    return pairs


def _boolean(text: str, default: bool, errors: FieldErrors) -> bool:
    if not text:
        return default
    if text.lower() not in BOOLEANS:
        errors.add("CNI_ARGS IgnoreUnknown", text, "is not a boolean", f"write one of {', '.join(BOOLEANS)}")
    return BOOLEANS.get(text.lower(), default)


def _pod(known: Mapping[str, str], errors: FieldErrors) -> dict[str, str]:
    """Return name and namespace of the pod; both empty unless both are valid."""
    pod = {part: known.get(part, "") for part in ("pod_name", "pod_namespace")}
    invalid = [part for part, text in pod.items() if text and not OBJECT_NAME.fullmatch(text)]
    for part in invalid:
        remedy = "give up to 253 letters, digits, '-', '.' and '_', the first a letter or digit"
        errors.add(f"CNI_ARGS K8S_{part.upper()}", pod[part], "is not an object name", remedy)
    return pod if all(pod.values()) and not invalid else dict.fromkeys(pod, "")


def _address(text: str, errors: FieldErrors) -> str:
    """Return the address in canonical form; empty if it is missing or invalid."""
    if not text:
        return ""
    try:
        return str(Address(text))
    except ValueError as error:
        problem = "is a network, not an address" if "/" in text else f"is not an address ({error})"
        errors.add("CNI_ARGS IP", text, problem, "give one IPv4 or IPv6 address without a prefix length")
        return ""


def labels_of(args: dict[str, Any] | None, names: Names, errors: FieldErrors) -> tuple[str, Labels]:
    """Return the namespace (empty unless a label names it) and the labels by key, in a form that selectors accept."""
    if not args:
        return "", ()
    given = dict(_label_pairs(args, errors))
    namespace = given.pop(f"{names.label_prefix}/namespace", "")
    if namespace and not OBJECT_NAME.fullmatch(namespace):
        errors.add(_PATH, namespace, "is not a namespace", "give up to 253 letters, digits, '-', '.' and '_'")
        namespace = ""
    labels = {_usable(key): _usable(value) for key, value in given.items()}
    return namespace, tuple(sorted((key, value) for key, value in labels.items() if key))


def _label_pairs(args: dict[str, Any], errors: FieldErrors) -> Iterator[tuple[str, str]]:
    found: Any = args
    for key in _KEYS:
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        return
    if not isinstance(found, list):
        errors.add(_PATH, found, f"is {json_kind(found)}", 'write an array of objects with "key" and "value"')
        return
    for index, item in enumerate(found):
        if isinstance(item, dict) and isinstance(item.get("key"), str) and isinstance(item.get("value"), str):
            yield item["key"], item["value"]
        else:
            errors.add(f"{_PATH}[{index}]", item, "is not a label", 'write an object with "key" and "value", both strings')


def _usable(text: str) -> str:
    """Return a valid label key or value: a dot for a slash, and a dash for a run of other invalid characters.

    A run of dots and dashes that contains a dot becomes one dot; at both ends they are removed.
    """
    return _DOTTED.sub(".", _UNUSABLE.sub("-", text.replace("/", "."))).strip("-.")
