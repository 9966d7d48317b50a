"""Settings of the controllers, from environment variables and, for the datastore, a network configuration.

Each variable also exists with the environment prefix of the names profile, and that one is preferred. An empty variable counts
as missing. All errors are reported together.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar

from svc.admin.controllers_configuration import SHORTEST_PERIOD
from svc.admin.installation_resource.wanted import NAMESPACE as NAMESPACE_OF_PODS
from svc.admin.kind import NAMESPACE_RULE, is_namespace
from svc.controllers.configuration import Configuration
from svc.controllers.configuration_merge import Overrides, configuration_of, effective
from svc.datastore.etcd.settings import read_settings
from svc.model import controllers_configuration as shape
from svc.model.duration import UNITS, parse_duration
from svc.model.errors import CallerError
from svc.model.field_errors import MISSING, FieldError
from svc.names import Names
from svc.netconf.fields import DATASTORE_ALIASES
from svc.netconf.netconf import DATASTORE_OPTIONS
from svc.netconf.networklist import read_netconf
from svc.values import dataclass, field

POLICY, NAMESPACE, ACCOUNT = "policy", "namespace", "serviceaccount"
WORKLOAD, NODE, LOAD_BALANCER = "workloadendpoint", "node", "loadbalancer"
OPERATOR: Final = "operator"
CONTROLLERS: Final[tuple[str, ...]] = (POLICY, NAMESPACE, ACCOUNT, WORKLOAD, NODE, LOAD_BALANCER)
KNOWN: Final = (*CONTROLLERS, OPERATOR)  # the last one runs only if it is named
ETCD, ORCH = "etcdv3", "orch"  # kinds of datastores, as in the settings of a session
RIGHT_REMEDY: Final = "grant it to the user of svc-controllers: docs/controllers.md, section Rights, lists what each needs"

_SYNONYMS: Final = {"profile": NAMESPACE}
_SWITCHES: Final = {"enabled": shape.ENABLED, "true": shape.ENABLED, "disabled": shape.DISABLED, "false": shape.DISABLED}
_LEVELS: Final = {level.lower(): level for level in shape.LEVELS}
_IN_POD: Final = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in each container
_ETCD_NAME: Final = re.compile(r"\betcd_[a-z_]+\b")

Json = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Settings:
    """Valid settings. `datastore` and `api` are in the form in which sessions are opened."""

    controllers: tuple[str, ...]
    datastore: dict[str, str]
    api: dict[str, str]
    configuration: Configuration  # in force until the one of the datastore is known
    overrides: Overrides = field(default_factory=Overrides)
    health_file: str = ""  # the path that HEALTH_FILE names
    namespace: str = NAMESPACE_OF_PODS  # of the workloads that the controller `operator` changes

    @property
    def has_copies(self) -> bool:
        """Whether the datastore needs copies of objects of Kubernetes. Otherwise they are read from Kubernetes itself."""
        return self.datastore["kind"] == ETCD


def read(environment: Mapping[str, str], names: Names, netconf: Path | None) -> Settings:
    """Return the settings. `netconf` replaces the variables of the datastore. Raise CallerError that lists all errors."""
    source = _Source(environment, names.environment_prefix)
    controllers = source.read("ENABLED_CONTROLLERS", _controllers, CONTROLLERS)
    overrides = _overrides(source)
    kubeconfig = source.read("KUBECONFIG", _readable, "")
    api = {"kubeconfig": kubeconfig} if kubeconfig else {}
    if netconf is None:
        datastore = _datastore(source, api)
    else:
        datastore, api = _of_netconf(netconf, names, api)
    if not api and not source.find("KUBECONFIG")[1] and not environment.get(_IN_POD):
        source.errors.append(
            FieldError("KUBECONFIG", MISSING, "is missing", "name a kubeconfig file; only a pod needs none").line
        )
    namespace = source.read("OPERATOR_NAMESPACE", _namespace, NAMESPACE_OF_PODS)
    source.raise_errors()
    configuration = configuration_of(effective({}, overrides), has_copies=datastore["kind"] == ETCD)
    return Settings(controllers, datastore, api, configuration, overrides, source.find("HEALTH_FILE")[1], namespace)


def _namespace(text: str) -> str:
    if not is_namespace(text):
        raise _Invalid("is not the name of a namespace", f"give {NAMESPACE_RULE}")
    return text


class _Invalid(ValueError):
    """An invalid text: the problem, and the fix."""


class _Source:
    """Environment variables, and the errors that were found in them."""

    def __init__(self, environment: Mapping[str, str], prefix: str) -> None:
        self._environment = environment
        self._prefix = prefix
        self.errors: list[str] = []

    def find(self, name: str) -> tuple[str, str]:
        """Return the variable that is set, and its text; an empty text if none is."""
        prefixed = f"{self._prefix}{name}"
        variable = prefixed if self._environment.get(prefixed, "").strip() else name
        return variable, self._environment.get(variable, "").strip()

    def read(self, name: str, parse: Callable[[str], Value], default: Value) -> Value:
        """Return the parsed text of a variable; the default if it is missing or invalid."""
        variable, text = self.find(name)
        if not text:
            return default
        try:
            return parse(text)
        except _Invalid as invalid:
            problem, remedy = invalid.args
            self.errors.append(FieldError(variable, text, problem, remedy).line)
            return default

    def raise_errors(self) -> None:
        if not self.errors:
            return
        number = f"{len(self.errors)} errors" if len(self.errors) > 1 else "an error"
        error = CallerError(f"invalid settings: {number}", details="; ".join(self.errors))
        error.subject, error.errors = "invalid settings", tuple(self.errors)
        raise error


def _overrides(source: _Source) -> Overrides:
    """Return what variables set in place of the fields of KubeControllersConfiguration."""
    nothing: Json = {}
    found = [source.read(name, parse, nothing) for name, parse in _FIELDS.items()]
    set_ones = [source.find(name) for name in ("ENABLED_CONTROLLERS", *_FIELDS)]
    return Overrides(reduce(shape.merged, found, nothing), {variable: text for variable, text in set_ones if text})


def _datastore(source: _Source, api: dict[str, str]) -> dict[str, str]:
    """Return the settings of the datastore that variables describe."""
    kinds = {ETCD: ETCD, ORCH: ORCH, **DATASTORE_ALIASES}
    kind = source.read("DATASTORE_TYPE", lambda text: _word(text, kinds), ETCD)
    if kind == ORCH:
        return {"kind": ORCH, **api}
    found = {option: source.find(option.upper()) for option in DATASTORE_OPTIONS[ETCD]}
    settings = {option: text for option, (_, text) in found.items() if text}
    try:
        read_settings(settings)
    except CallerError as error:  # it names options of a network configuration
        variables = {option: variable for option, (variable, _) in found.items()}
        source.errors += [_ETCD_NAME.sub(lambda name: variables.get(name[0], name[0]), line) for line in error.errors]
    return {"kind": ETCD, **settings}


def _of_netconf(path: Path, names: Names, api: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the datastore and of the API server in a network configuration. Raise CallerError."""
    netconf = read_netconf(path, names)
    if netconf.datastore.kind not in (ETCD, ORCH):
        kinds = f"{ETCD} or {names.orch_datastore}"
        raise CallerError(
            f"network configuration {str(path)!r}: datastore_type = {netconf.datastore.kind!r} is the store of one node",
            details=f"name a file with a datastore of the cluster: {kinds}",
        )
    return netconf.datastore.to_json(), dict(netconf.orchestrator) or api


def _controllers(text: str) -> tuple[str, ...]:
    given = [word.strip() for word in text.split(",")]
    fix = f"give some of {_listed((*KNOWN, *_SYNONYMS))}, separated by commas"
    if unknown := [word for word in given if word not in KNOWN and word not in _SYNONYMS]:
        raise _Invalid(f"has {_listed(map(repr, unknown))}, which is not a controller", fix)
    return tuple(dict.fromkeys(_SYNONYMS.get(word, word) for word in given))


def _word(text: str, known: Mapping[str, Value]) -> Value:
    if text.lower() not in known:
        raise _Invalid("is not known", f"give one of {_listed(known)}")
    return known[text.lower()]


def _duration(text: str) -> str:
    try:
        parse_duration(text)
    except ValueError as error:
        raise _Invalid(str(error), f"give one such as 90s, 5m or 1h30m, of the units {_listed(UNITS)}, or 0") from None
    return text


def _period(text: str) -> str:
    if parse_duration(_duration(text)) < SHORTEST_PERIOD:
        raise _Invalid("is too short", f"give at least {SHORTEST_PERIOD:g}s, such as 5m")
    return text


def _compaction(text: str) -> str:
    if 0 < parse_duration(_duration(text)) < SHORTEST_PERIOD:
        raise _Invalid("is too short", f"give at least {SHORTEST_PERIOD:g}s, such as 10m, or 0 for none")
    return text


def _readable(text: str) -> str:
    if not os.access(text, os.R_OK):
        raise _Invalid("cannot be read", "name a kubeconfig file that this process may read, or leave it out inside a pod")
    return text


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _in_node(fields: Json) -> Json:
    return {shape.SECTIONS: {shape.NODE: fields}}


_FIELDS: Final[dict[str, Callable[[str], Json]]] = {  # by variable: the fields of a spec that its text sets
    "LOG_LEVEL": lambda text: {shape.LEVEL: _word(text, _LEVELS)},
    "RECONCILER_PERIOD": lambda text: {shape.SECTIONS: {name: {shape.PERIOD: _period(text)} for name in shape.CONTROLLERS}},
    "COMPACTION_PERIOD": lambda text: {shape.COMPACTION: _compaction(text)},
    "HEALTH_ENABLED": lambda text: {shape.HEALTH: _word(text, _SWITCHES)},
    "SYNC_NODE_LABELS": lambda text: _in_node({"syncLabels": _word(text, _SWITCHES)}),
    "AUTO_HOST_ENDPOINTS": lambda text: _in_node({"hostEndpoint": {"autoCreate": _word(text, _SWITCHES)}}),
}
