"""Settings of the controllers, from environment variables and, for the datastore, a network configuration.

Each variable also exists with the environment prefix of the names profile, and that one is preferred. An empty variable counts
as missing. All errors are reported together.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from svc.controllers.configuration import Configuration
from svc.datastore.etcd.settings import read_settings
from svc.model.errors import CallerError
from svc.model.field_errors import MISSING, FieldError
from svc.names import Names
from svc.netconf.fields import DATASTORE_ALIASES
from svc.netconf.netconf import DATASTORE_OPTIONS
from svc.netconf.networklist import read_netconf
from svc.values import dataclass

POLICY, NAMESPACE, ACCOUNT = "policy", "namespace", "serviceaccount"
WORKLOAD, LOAD_BALANCER = "workloadendpoint", "loadbalancer"
CONTROLLERS: Final[tuple[str, ...]] = (POLICY, NAMESPACE, ACCOUNT, WORKLOAD, LOAD_BALANCER)
LATER: Final = ("node",)  # controllers that this version does not have
ETCD, ORCH = "etcdv3", "orch"  # kinds of datastores, as in the settings of a session

_SYNONYMS: Final = {"profile": NAMESPACE}
_LEVELS: Final = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "fatal": "CRITICAL",
    "panic": "CRITICAL",
    "none": "CRITICAL",
}
_SWITCHES: Final = {"enabled": True, "true": True, "disabled": False, "false": False}
_UNUSED: Final = ("HEALTH_ENABLED", "SYNC_NODE_LABELS", "AUTO_HOST_ENDPOINTS")  # checked, for later versions
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(_UNITS)})")
_DURATION: Final = re.compile(rf"0|(?:{_PART.pattern})+")
_RECONCILER, _COMPACTION = 300.0, 600.0  # seconds
_SHORTEST: Final = 1.0  # seconds between full rounds
_IN_POD: Final = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in each container
_ETCD_NAME: Final = re.compile(r"\betcd_[a-z_]+\b")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Settings:
    """Valid settings. `datastore` and `api` are in the form in which sessions are opened."""

    controllers: tuple[str, ...]
    datastore: dict[str, str]
    api: dict[str, str]
    configuration: Configuration
    without_effect: tuple[str, ...]  # variables that are set, and that this version does not use

    @property
    def has_copies(self) -> bool:
        """Whether the datastore needs copies of objects of Kubernetes. Otherwise they are read from Kubernetes itself."""
        return self.datastore["kind"] == ETCD


def read(environment: Mapping[str, str], names: Names, netconf: Path | None) -> Settings:
    """Return the settings. `netconf` replaces the variables of the datastore. Raise CallerError that lists all errors."""
    source = _Source(environment, names.environment_prefix)
    controllers = source.read("ENABLED_CONTROLLERS", _controllers, CONTROLLERS)
    level = source.read("LOG_LEVEL", lambda text: _word(text, _LEVELS), "INFO")
    reconciler = source.read("RECONCILER_PERIOD", _period, _RECONCILER)
    compaction = source.read("COMPACTION_PERIOD", _duration, _COMPACTION)
    for name in _UNUSED:
        source.read(name, lambda text: _word(text, _SWITCHES), False)
    without_effect = tuple(variable for variable, text in map(source.find, _UNUSED) if text)
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
    source.raise_errors()
    periods = dict.fromkeys(CONTROLLERS, reconciler)
    configuration = Configuration(log_level=level, compaction_seconds=compaction, periods=periods)
    return Settings(controllers, datastore, api, configuration, without_effect)


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
    fix = f"give some of {_listed((*CONTROLLERS, *_SYNONYMS))}, separated by commas"
    if later := [word for word in given if word in LATER]:
        raise _Invalid(f"has {_listed(later)}, which this version does not have yet", fix)
    if unknown := [word for word in given if word not in CONTROLLERS and word not in _SYNONYMS]:
        raise _Invalid(f"has {_listed(map(repr, unknown))}, which is not a controller", fix)
    return tuple(dict.fromkeys(_SYNONYMS.get(word, word) for word in given))


def _word(text: str, known: Mapping[str, Value]) -> Value:
    if text.lower() not in known:
        raise _Invalid("is not known", f"give one of {_listed(known)}")
    return known[text.lower()]


def _duration(text: str) -> float:
    if not _DURATION.fullmatch(text):
        raise _Invalid("is not a duration", f"give one such as 90s, 5m or 1h30m, of the units {_listed(_UNITS)}, or 0")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _period(text: str) -> float:
    seconds = _duration(text)
    if seconds < _SHORTEST:
        raise _Invalid("is too short", f"give at least {_SHORTEST:g}s, such as 5m")
    return seconds


def _readable(text: str) -> str:
    if not os.access(text, os.R_OK):
        raise _Invalid("cannot be read", "name a kubeconfig file that this process may read, or leave it out inside a pod")
    return text


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
