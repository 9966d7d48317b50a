"""Environment variables of a call: check what the verb needs, and report all field errors in one exception."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from svc.model.errors import Code
from svc.model.field_errors import Check, FieldErrors, Finding
from svc.values import dataclass

VERBS: Final = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")
_ONE_VERB: Final = f"give one of {', '.join(VERBS)}"

# A handle, NETWORK.CONTAINER, names a Kubernetes object of at most 253 characters: at most 124 for the network name and one for
# the dot. Runtimes use at most 64 for the container ID.
MAX_CONTAINER_ID: Final = 128
MAX_INTERFACE: Final = 15  # IFNAMSIZ without the final NUL

_CONTAINER_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_NO_INTERFACES: Final = (".", "..", "all", "default")  # /proc/sys/net uses "all" and "default" for settings of all interfaces
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class CniCall:
    """One call of the runtime. Variables that the verb does not need may be empty."""

    verb: str
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: str = ""
    traceparent: str = ""
    ipam: bool = False  # the runtime called the IPAM plugin, not the main plugin


def _container_id(text: str) -> Finding | None:
    if len(text) > MAX_CONTAINER_ID:
        return f"has {len(text)} characters", f"give at most {MAX_CONTAINER_ID}"
    if not _CONTAINER_ID.fullmatch(text):
        return "is not a container id", "start with a letter or digit, then letters, digits, '_', '.' and '-'"
    return None


@lru_cache(16)  # most calls have the same interface name
def _interface(text: str) -> Finding | None:
    """Check an interface name as the kernel does. Also refuse '%', which the kernel replaces with a number."""
    length = len(text.encode())
    if length > MAX_INTERFACE:
        return f"has {length} bytes", f"give an interface name of 1 to {MAX_INTERFACE} bytes"
    if text in _NO_INTERFACES:
        return "is not an interface name", f"give a name other than {', '.join(map(repr, _NO_INTERFACES))}"
    if any(char in "/:%" or char.isspace() or not char.isprintable() for char in text):
        return "is not an interface name", "leave out '/', ':', '%', white space and control characters"
    return None


def _netns(text: str) -> Finding | None:
    if not text.startswith("/"):
        return "is not an absolute path", "give the path of the network namespace, such as '/var/run/netns/NAME'"
    return None


def _path(text: str) -> Finding | None:
    if not text.strip(":"):
        return "names no directory", "give the plugins' directories, separated by ':'"
    return None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the CNI specification."""

    name: str
    required: frozenset[str]  # verbs that require it
    check: Check | None
    remedy: str  # if it is missing
    used: frozenset[str] = frozenset()  # verbs that use it if it is given
    wiring: bool = False  # only the main plugin uses it


_ATTACHED: Final = frozenset({"ADD", "CHECK", "DEL"})
_PRESENT: Final = frozenset({"ADD", "CHECK"})

VARIABLES: Final = (
    Variable("CNI_CONTAINERID", _ATTACHED, _container_id, "give the container's id"),
    Variable("CNI_NETNS", _PRESENT, _netns, "give the path of the container's network namespace", wiring=True),
    Variable("CNI_IFNAME", _ATTACHED, _interface, "give the name of the interface in the container, such as 'eth0'"),
    Variable("CNI_PATH", frozenset({"GC"}), _path, "give the plugins' directories, separated by ':'"),
    Variable("CNI_ARGS", frozenset(), None, "give KEY=VALUE pairs, separated by ';'", used=_PRESENT),
)


def parse_environment(environment: Mapping[str, str], *, ipam: bool) -> CniCall:
    """Return the call, with malformed variables that it does not need empty. Raise CallerError with all other field errors."""
    errors = FieldErrors("invalid environment", Code.INVALID_ENVIRONMENT)
    verb = _verb(environment.get("CNI_COMMAND", ""), errors)
    values = {variable.name: _value(variable, verb, environment, errors, ipam=ipam) for variable in VARIABLES}
    errors.raise_if_any()
    return CniCall(
        verb,
        container_id=values["CNI_CONTAINERID"],
        netns=values["CNI_NETNS"],
        ifname=values["CNI_IFNAME"],
        args=values["CNI_ARGS"],
        traceparent=_traceparent(environment),
        ipam=ipam,
    )


def _verb(text: str, errors: FieldErrors) -> str:
    if not text:
        errors.missing("CNI_COMMAND", _ONE_VERB, "is not set")
    elif text not in VERBS:
        errors.add("CNI_COMMAND", text, "is not a verb", _ONE_VERB)
    return text


def _value(variable: Variable, verb: str, environment: Mapping[str, str], errors: FieldErrors, *, ipam: bool) -> str:
    text = environment.get(variable.name, "")
    if not text:
        if verb in variable.required:
            errors.missing(variable.name, variable.remedy, f"is not set, but {verb} needs it")
        return ""
    finding = _not_text(text) or (variable.check and variable.check(text))
    if finding is None:
        return text
    if verb in variable.required | variable.used and not (ipam and variable.wiring):
        errors.add(variable.name, text, *finding)
    return ""


def _not_text(text: str) -> Finding | None:
    """Refuse text that is not UTF-8 or has a NUL. Results may contain any variable, and JSON is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not UTF-8", "give UTF-8 text"
    if "\0" in text:
        return "holds a NUL", "leave it out"
    return None


def _traceparent(environment: Mapping[str, str]) -> str:
    """Return the W3C trace context. A malformed one is ignored, as that specification requires."""
    text = environment.get("TRACEPARENT", "")
    return text if _TRACEPARENT.fullmatch(text) else ""
