"""The rules of KubeControllersConfiguration, for those who write it and for the controllers that read it."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin.field_rules import Found, Rule, fields, items, lines, one_of, texts, typed
from svc.datastore.api import Backend
from svc.model import controllers_configuration as shape
from svc.model.duration import UNITS, parse_duration
from svc.model.field_errors import FieldError
from svc.model.resource import Resource, label_errors
from svc.model.selector import parse
from svc.values import replace

SHORTEST_PERIOD: Final = 1.0  # seconds between full rounds, and between compactions
_TEMPLATE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def check_document(backend: Backend, resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a document for this datastore."""
    found = [*check(resource.spec, has_copies=backend.atomic)]
    return lines(found or _ineffective(resource.spec))


def check(spec: Mapping[str, Any], *, has_copies: bool, open_ended: bool = False) -> Found:
    """Yield the errors of a spec. With `open_ended`, it may have fields of other versions.

    `has_copies` is whether the datastore has copies of the nodes of Kubernetes, whose labels can be copied or not.
    """
    switch, inside = one_of(shape.SWITCH), partial(fields, open_ended=open_ended)
    periods: dict[str, Rule] = {shape.PERIOD: period}
    node = periods | {
        "syncLabels": switch if has_copies else _always_copied,
        "leakGracePeriod": _duration,
        "hostEndpoint": partial(inside, _host_endpoint(inside)),
    }
    sections: dict[str, Rule] = {section: partial(inside, periods) for section in shape.CONTROLLERS}
    sections |= {
        shape.NODE: partial(inside, node),
        shape.BALANCER: partial(inside, periods | {"assignIPs": one_of(shape.ASSIGNMENTS)}),
        "migration": partial(inside, {"policyNameMigrator": switch}),
    }
    known: dict[str, Rule] = {
        shape.LEVEL: one_of(shape.LEVELS),
        shape.HEALTH: switch,
        shape.COMPACTION: _compaction,
        shape.METRICS_PORT: _port,
        shape.DEBUG_PORT: _port,
        shape.SECTIONS: partial(inside, sections),
    }
    return inside(known, "spec", dict(spec))


def _ineffective(spec: Mapping[str, Any]) -> Found:
    """Yield the errors of a valid spec in values that the controllers would leave out."""
    ports = [spec.get(name) for name in (shape.METRICS_PORT, shape.DEBUG_PORT)]
    if ports[0] and ports[0] == ports[1]:
        problem = f"is also {shape.METRICS_PORT}, and only one of the two can be served"
        yield FieldError(f"spec.{shape.DEBUG_PORT}", ports[1], problem, "give another port, or 0 for none")
    node = (spec.get(shape.SECTIONS) or {}).get(shape.NODE) or {}
    for index, template in enumerate((node.get("hostEndpoint") or {}).get("templates") or ()):
        where = f"spec.{shape.SECTIONS}.{shape.NODE}.hostEndpoint.templates[{index}].labels"
        for error in label_errors(template.get("labels") or {}):
            yield replace(error, field=error.field.replace("metadata.labels", where))


def period(where: str, value: Any) -> Found:
    """Yield the errors of a time between full rounds."""
    found = list(_duration(where, value))
    yield from found
    if not found and parse_duration(value) < SHORTEST_PERIOD:
        yield FieldError(where, value, "is too short", f"give at least {SHORTEST_PERIOD:g}s, such as 5m")


def _compaction(where: str, value: Any) -> Found:
    found = list(_duration(where, value))
    yield from found
    if not found and 0 < parse_duration(value) < SHORTEST_PERIOD:
        yield FieldError(where, value, "is too short", f"give at least {SHORTEST_PERIOD:g}s, such as 10m, or 0 for none")


def _host_endpoint(inside: Any) -> dict[str, Rule]:
    template: dict[str, Rule] = {
        "generateName": _name,
        "interfaceCIDRs": items(_cidr),
        "interfacePattern": _pattern,
        "nodeSelector": _selector,
        "labels": texts,
        "annotations": texts,
    }
    each = items(partial(inside, template, required=("generateName",)))
    switch = one_of(shape.SWITCH)
    return {"autoCreate": switch, "createDefaultHostEndpoint": switch, "templates": partial(_templates, each)}


def _templates(each: Rule, where: str, value: Any) -> Found:
    yield from each(where, value)
    names: set[str] = set()
    for index, item in enumerate(value if isinstance(value, list) else ()):
        name = item.get("generateName") if isinstance(item, dict) else None
        if isinstance(name, str) and name in names:
            yield FieldError(f"{where}[{index}].generateName", name, "is given twice", "give each template its own name")
        names |= {name} if isinstance(name, str) else set()


def _always_copied(where: str, value: Any) -> Found:
    yield from one_of(shape.SWITCH)(where, value)
    if value == shape.DISABLED:
        problem = "is refused: in this datastore the nodes are those of Kubernetes, and have their labels"
        yield FieldError(where, value, problem, f"leave it out, or give {shape.ENABLED}")


def _port(where: str, value: Any) -> Found:
    if type(value) is not int or not 0 <= value <= shape.MAX_PORT:
        yield FieldError(where, value, "is not a port", f"give 1 to {shape.MAX_PORT}, or 0 for none")


def _name(where: str, value: Any) -> Found:
    if not isinstance(value, str) or not _TEMPLATE_NAME.fullmatch(value):
        remedy = "give lower-case letters, digits, '-' and '.', a letter or digit first and last"
        yield FieldError(where, value, "cannot be part of a name", remedy)


def _cidr(where: str, value: Any) -> Found:
    try:
        Cidr(value)
    except (TypeError, ValueError):
        yield FieldError(where, value, "is not a CIDR", "give one such as 10.0.0.0/8 or fd00::/8")


def _readable(read: Callable[[str], object], problem: str, remedy: str) -> Rule:
    """Return the rule for a text that `read` accepts. `problem` has a place for the reason."""

    def rule(where: str, value: Any) -> Found:
        if not isinstance(value, str):
            yield from typed(str)(where, value)
            return
        try:
            read(value)
        except (ValueError, re.error) as error:
            yield FieldError(where, value, problem.format(error), remedy)

    return rule


_duration: Final = _readable(parse_duration, "{}", f"give one such as 90s, 5m or 1h30m, of the units {', '.join(UNITS)}, or 0")
_pattern: Final = _readable(re.compile, "is not a regular expression: {}", "give one such as ^eth[0-9]+$")
_selector: Final = _readable(parse, "is not a selector: {}", "give one such as all() or rack == 'a'")
