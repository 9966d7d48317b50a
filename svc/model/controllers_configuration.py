"""KubeControllersConfiguration, the settings of the controllers that may change while they run: words, sections, defaults."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from svc.model.keys import ResourceKey

Json = dict[str, Any]

KIND: Final = "KubeControllersConfiguration"
KEY: Final = ResourceKey(KIND, "default")

LEVELS: Final = ("None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic")
ENABLED, DISABLED = SWITCH = ("Enabled", "Disabled")
ALL_SERVICES, REQUESTED_SERVICES = ASSIGNMENTS = ("AllServices", "RequestedServicesOnly")
MAX_PORT: Final = 65535

LEVEL, HEALTH, COMPACTION, METRICS_PORT, DEBUG_PORT, SECTIONS = FIELD_NAMES = (
    "logSeverityScreen",
    "healthChecks",
    "etcdV3CompactionPeriod",
    "prometheusMetricsPort",
    "debugProfilePort",
    "controllers",
)
NODE, BALANCER = "node", "loadBalancer"
CONTROLLERS: Final = (NODE, "policy", "workloadEndpoint", "serviceAccount", "namespace", BALANCER)  # sections
PERIOD: Final = "reconcilerPeriod"

TEXTS: Final = (
    LEVEL,
    HEALTH,
    COMPACTION,
    f"{SECTIONS}.*.{PERIOD}",
    f"{SECTIONS}.{NODE}.leakGracePeriod",
)  # fields that YAML may read as another type if they have no quotes

_PERIODS: Final = {PERIOD: "5m0s"}
_DEFAULTS: Final[Json] = {
    LEVEL: "Info",
    HEALTH: ENABLED,
    COMPACTION: "10m0s",
    SECTIONS: {
        NODE: {
            **_PERIODS,
            "syncLabels": ENABLED,
            "leakGracePeriod": "15m0s",
            "hostEndpoint": {"autoCreate": DISABLED, "createDefaultHostEndpoint": ENABLED, "templates": []},
        },
        **{section: _PERIODS for section in CONTROLLERS if section not in (NODE, BALANCER)},
        BALANCER: {**_PERIODS, "assignIPs": ALL_SERVICES},
    },
}  # the ports have no default: nothing is served


def defaults() -> Json:
    """Return the spec that has each default."""
    return deepcopy(_DEFAULTS)


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Json:
    """Return the fields of both. Objects are merged; another value of `upper` replaces that of `lower`; null is no value."""
    found = dict(lower)
    for name, value in upper.items():
        present = found.get(name)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            found[name] = merged(present, value)
        elif value is not None:
            found[name] = value
    return found


def missing_sections(spec: Mapping[str, Any]) -> list[str]:
    """Return the paths of the sections for controllers that a spec does not have. All are missing if `controllers` is."""
    given = spec.get(SECTIONS) or {}
    found = [f"{SECTIONS}.{section}" for section in _DEFAULTS[SECTIONS] if given.get(section) is None]
    if given.get(NODE) is not None and given[NODE].get("hostEndpoint") is None:
        found.append(f"{SECTIONS}.{NODE}.hostEndpoint")
    return found if given else [SECTIONS]
