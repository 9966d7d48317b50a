"""Which configuration is in force: defaults, then the resource, then environment variables. Without I/O.

If a value of the resource is invalid, its last valid spec counts. A process that has not seen one takes what the last leader
has written to the status, otherwise the defaults.
"""

from collections.abc import Mapping
from typing import Any

from svc.admin.controllers_configuration import check
from svc.controllers.configuration import Configuration, HostEndpointTemplate
from svc.model import controllers_configuration as shape
from svc.model.duration import format_duration, parse_duration
from svc.model.field_errors import FieldError
from svc.model.resource import Resource
from svc.values import dataclass, field

Json = dict[str, Any]

_LEVELS = dict.fromkeys(shape.LEVELS, "CRITICAL") | {
    level: level.upper() for level in ("Debug", "Info", "Warning", "Error")
}  # without those of Go


@dataclass(frozen=True, slots=True)
class Overrides:
    """What environment variables set: the `fields` of a spec, and the text of each variable that is set."""

    fields: Json = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The settings in force. `spec` is the valid spec that they come from, `errors` are those of the present resource."""

    spec: Json
    settings: Json
    errors: tuple[FieldError, ...] = ()


def decide(resource: Resource, last: Json | None, overrides: Overrides, *, has_copies: bool) -> Decision:
    """Return what is in force with a resource. `last` is the last valid spec, None if this process has seen none."""
    errors = tuple(check(resource.spec, has_copies=has_copies, open_ended=True))
    spec = resource.spec if not errors else _running(resource) if last is None else last
    return Decision(spec, effective(spec, overrides), errors)


def effective(spec: Json, overrides: Overrides) -> Json:
    """Return every setting: the defaults, overridden by a valid spec, overridden by the environment."""
    return shape.merged(shape.merged(shape.defaults(), spec), overrides.fields)


def configuration_of(settings: Json, *, has_copies: bool) -> Configuration:
    """Return the configuration of effective settings. Labels are only copied if the datastore has copies of nodes."""
    sections = settings[shape.SECTIONS]
    node, endpoints = sections[shape.NODE], sections[shape.NODE]["hostEndpoint"]
    return Configuration(
        log_level=_LEVELS[settings[shape.LEVEL]],
        serves_health=_is_on(settings[shape.HEALTH]),
        compaction_seconds=parse_duration(settings[shape.COMPACTION]),
        metrics_port=settings.get(shape.METRICS_PORT) or 0,
        debug_port=settings.get(shape.DEBUG_PORT) or 0,
        periods={each.lower(): parse_duration(sections[each][shape.PERIOD]) for each in shape.CONTROLLERS},
        syncs_labels=has_copies and _is_on(node["syncLabels"]),
        leak_grace_seconds=parse_duration(node["leakGracePeriod"]),
        creates_host_endpoints=_is_on(endpoints["autoCreate"]),
        creates_default_host_endpoint=_is_on(endpoints["createDefaultHostEndpoint"]),
        host_endpoint_templates=tuple(map(_template, endpoints["templates"])),
        assigns_all_services=sections[shape.BALANCER]["assignIPs"] == shape.ALL_SERVICES,
    )


def running_config(settings: Json, enabled: tuple[str, ...], *, has_copies: bool) -> Json:
    """Return effective settings as the status shows them: of the enabled controllers, with durations as Go writes them."""
    given, sections = settings[shape.SECTIONS], {}
    for name in shape.CONTROLLERS:
        if name.lower() in enabled:
            sections[name] = _shown(given[name], (shape.PERIOD,))
    if shape.NODE in sections:
        sections[shape.NODE] = _shown(sections[shape.NODE], ("leakGracePeriod",))
        sections[shape.NODE] |= {} if has_copies else {"syncLabels": shape.DISABLED}
    return _shown(settings | {shape.SECTIONS: sections}, (shape.COMPACTION,))


def _running(resource: Resource) -> Json:
    """Return the settings in force that the status shows; {} if it shows none."""
    found = (resource.status or {}).get("runningConfig")
    return found if isinstance(found, dict) and not any(check(found, has_copies=True, open_ended=True)) else {}


def _shown(fields: Json, durations: tuple[str, ...]) -> Json:
    return fields | {name: format_duration(parse_duration(fields[name])) for name in durations}


def _is_on(word: str) -> bool:
    return word == shape.ENABLED


def _template(given: Json) -> HostEndpointTemplate:
    return HostEndpointTemplate(
        name=given["generateName"],
        interface_cidrs=tuple(given.get("interfaceCIDRs") or ()),
        interface_pattern=given.get("interfacePattern") or "",
        node_selector=given.get("nodeSelector") or "all()",
        labels=given.get("labels") or {},
        annotations=given.get("annotations") or {},
    )
