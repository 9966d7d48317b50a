"""Rules for documents of policies. Policy agents read and enforce them; svc only stores them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin.field_rules import Found, Rule, fields, items, lines, one_of, typed
from svc.admin.renaming import Renaming
from svc.admin.rules import ACTIONS, check_protocol
from svc.model.field_errors import FieldError
from svc.model.resource import Resource
from svc.model.selector import SelectorError, parse
from svc.values import replace

Json = dict[str, Any]

KIND, GLOBAL_KIND = "NetworkPolicy", "GlobalNetworkPolicy"
POLICY_FIELDS: Final = (
    "tier",
    "order",
    "selector",
    "serviceAccountSelector",
    "types",
    "ingress",
    "egress",
    "performanceHints",
)
GLOBAL_FIELDS: Final = (*POLICY_FIELDS, "namespaceSelector", "applyOnForward", "doNotTrack", "preDNAT")
TEXTS: Final = ("tier", "selector", "serviceAccountSelector", "namespaceSelector", "types[]")
COPY_PREFIX: Final = "knp.default."  # of names of copies of Kubernetes' policies

_COPIED: Final = f"its name begins with {COPY_PREFIX!r}: the controllers copy it from Kubernetes; use kubectl, or another name"
_DEFAULT_TIER: Final = "default"
_DIRECTIONS: Final = ("ingress", "egress")
_SIDES: Final = ("source", "destination")
_INGRESS, _EGRESS = "Ingress", "Egress"
_LAST_PORT: Final = 65535


def check_policy(resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a policy of a namespace."""
    yield from lines(_fields(POLICY_FIELDS, resource.spec))


def check_global_policy(resource: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a policy of all namespaces."""
    yield from lines(_fields(GLOBAL_FIELDS, resource.spec))


def why_copied(resource: Resource) -> str:
    """Return why the controllers write a policy; empty if it is not one of their copies."""
    return _COPIED if resource.name.startswith(COPY_PREFIX) else ""


def completed(resource: Resource) -> Resource:
    """Return the policy with its tier and its directions, which policy agents expect.

    Without `types`, it is about the directions that have rules, and about ingress if none has."""
    given = {name: value for name, value in resource.spec.items() if value is not None}
    has_rules = bool(given.get("ingress")), bool(given.get("egress"))
    types = [_EGRESS] if has_rules == (False, True) else [_INGRESS, _EGRESS] if all(has_rules) else [_INGRESS]
    return replace(resource, spec={"tier": _DEFAULT_TIER, **given, "types": given.get("types") or types})


def renamed(spec: Json, renaming: Renaming) -> Json:
    """Return a spec with the labels of another deployment in its selectors, those of its rules included."""
    rules = {name: [_renamed_rule(each, renaming) for each in spec[name]] for name in _DIRECTIONS if _is_list(spec, name)}
    return _renamed_selectors(spec, renaming) | rules


def _is_list(spec: Json, name: str) -> bool:
    return isinstance(spec.get(name), list)


def _renamed_rule(rule: Any, renaming: Renaming) -> Any:
    if not isinstance(rule, dict):
        return rule
    sides = {name: _renamed_selectors(rule[name], renaming) for name in _SIDES if isinstance(rule.get(name), dict)}
    return rule | sides


def _renamed_selectors(given: Json, renaming: Renaming) -> Json:
    return {
        name: renaming.selector(value) if name.lower().endswith("selector") and isinstance(value, str) else value
        for name, value in given.items()
    }


def _fields(known: tuple[str, ...], spec: Json) -> Found:
    return fields({name: _RULES[name] for name in known}, "spec", spec)


def _order(where: str, value: Any) -> Found:
    if type(value) not in (int, float):
        yield FieldError(where, value, "is not a number", "give one such as 100: policies apply in this order")


def _selector(where: str, value: Any) -> Found:
    yield from typed(str)(where, value)
    try:
        parse(value if isinstance(value, str) else "")
    except SelectorError as error:
        yield FieldError(where, value, f"is not a selector: {error}", "give one such as all() or app == 'web'")


def _network(where: str, value: Any) -> Found:
    try:
        Cidr.masked(value)
    except (TypeError, ValueError):
        yield FieldError(where, value, "is not a CIDR", "give one such as 192.0.2.0/24 or 2001:db8::/64")


def _port(where: str, value: Any) -> Found:
    if isinstance(value, str):
        first, colon, last = value.partition(":")
        is_range = first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= _LAST_PORT
        is_valid = is_range if colon else bool(value)
    else:
        is_valid = type(value) is int and 0 <= value <= _LAST_PORT
    if not is_valid:
        remedy = f"give a number up to {_LAST_PORT}, a range such as 8000:8080, or a port's name"
        yield FieldError(where, value, "is not a port", remedy)


_SIDE: Final = partial(
    fields,
    dict.fromkeys(("nets", "notNets"), items(_network))
    | dict.fromkeys(("ports", "notPorts"), items(_port))
    | dict.fromkeys(("selector", "notSelector", "namespaceSelector"), _selector),
    open_ended=True,
)
_RULE: Final = partial(
    fields,
    {"action": one_of(ACTIONS), "ipVersion": one_of((4, 6))}
    | dict.fromkeys(("protocol", "notProtocol"), check_protocol)
    | dict.fromkeys(_SIDES, _SIDE),
    open_ended=True,
    required=("action",),
)
_RULES: Final[dict[str, Rule]] = {
    "tier": typed(str),
    "order": _order,
    "types": items(one_of((_INGRESS, _EGRESS))),
    "performanceHints": items(typed(str)),
    **dict.fromkeys(("selector", "serviceAccountSelector", "namespaceSelector"), _selector),
    **dict.fromkeys(_DIRECTIONS, items(_RULE)),
    **dict.fromkeys(("applyOnForward", "doNotTrack", "preDNAT"), typed(bool)),
}
