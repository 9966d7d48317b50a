"""NetworkPolicies of Kubernetes as policies of the datastore, with the same meaning."""

from collections.abc import Iterable, Iterator
from typing import Any

from svc._core.cidr import Cidr
from svc.controllers.copies.copied_kind import CopiedKind, Json, Translation, Untranslatable
from svc.datastore.orch.client import segment
from svc.model.field_errors import display
from svc.model.keys import ResourceKey, ResourceQuery
from svc.names import Names

PREFIX = "knp.default."
ORDER = 1000
TIER = "default"

_KIND = "NetworkPolicy"
_GROUP = "/apis/networking.k8s.io/v1"
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_DEFAULT_PROTOCOL = "TCP"
_LAST_PORT = 65535

Ports = list[int | str]


class NetworkPolicies(CopiedKind):
    """The policy of each NetworkPolicy, in the same namespace."""

    controller = "policy"
    path = f"{_GROUP}/networkpolicies"
    query = ResourceQuery(_KIND)
    prefix = PREFIX

    def __init__(self, names: Names) -> None:
        self._pod_term = f"{names.label_prefix}/orchestrator == '{names.orchestrator}'"

    def key(self, original: Json) -> ResourceKey:
        metadata = original["metadata"]
        return ResourceKey(_KIND, f"{PREFIX}{metadata['name']}", metadata["namespace"])

    def original_path(self, key: ResourceKey) -> str:
        name = key.name.removeprefix(PREFIX)
        return f"{_GROUP}/namespaces/{segment(key.namespace)}/networkpolicies/{segment(name)}" if name else ""

    def translate(self, original: Json) -> Translation:
        given = original.get("spec") or {}
        spec: Json = {"tier": TIER, "order": ORDER, "selector": self._pods(given.get("podSelector"))}
        spec["types"] = given.get("policyTypes") or ["Ingress"]
        left_out: list[str] = []
        for direction, peers, side in (("ingress", "from", "source"), ("egress", "to", "destination")):
            rules = []
            for number, rule in enumerate(given.get(direction) or ()):
                try:
                    rules += self._rules(rule, peers, side)
                except Untranslatable as reason:
                    left_out.append(f"{direction}[{number}]: {reason}")
            if rules:
                spec[direction] = rules
        return Translation(spec, tuple(left_out))

    def _rules(self, rule: Json, peers: str, side: str) -> list[Json]:
        """Return a rule for each pair of protocol and peer. Raise Untranslatable if one of them has no equivalent."""
        ends = [self._peer(peer) for peer in rule.get(peers) or ()] or [{}]
        return [_rule(protocol, ports, side, end) for protocol, ports in _ports(rule.get("ports") or ()) for end in ends]

    def _peer(self, peer: Json) -> Json:
        if (block := peer.get("ipBlock")) is not None:
            return _block(block)
        found = {"selector": self._pods(peer.get("podSelector"))}
        if (namespaces := peer.get("namespaceSelector")) is not None:
            found["namespaceSelector"] = " && ".join(_terms(namespaces)) or "all()"
        return found

    def _pods(self, selector: Json | None) -> str:
        """Return the selector of pods. The first term excludes endpoints that do not belong to a pod."""
        return " && ".join((self._pod_term, *_terms(selector or {})))


def _rule(protocol: str, ports: Ports, side: str, end: Json) -> Json:
    rule: Json = {"action": "Allow"} | ({"protocol": protocol} if protocol else {}) | {"source": {}, "destination": {}}
    rule[side] = dict(end)
    if ports:
        rule["destination"]["ports"] = ports
    return rule


def _block(block: Json) -> Json:
    excluded = [_cidr(text) for text in block.get("except") or ()]
    return {"nets": [_cidr(block.get("cidr"))]} | ({"notNets": excluded} if excluded else {})


def _cidr(text: Any) -> str:
    try:
        return str(Cidr.masked(text))
    except (ValueError, TypeError):
        raise Untranslatable(f"{display(text)} is not a CIDR") from None


def _terms(selector: Json) -> Iterator[str]:
    """Yield the terms of a label selector: sorted labels, then expressions in their order."""
    for name, value in sorted((selector.get("matchLabels") or {}).items()):
        yield f"{_checked(name)} == '{_checked(value)}'"
    for each in selector.get("matchExpressions") or ():
        yield _expression(_checked(each.get("key")), each.get("operator"), each.get("values") or ())


def _expression(name: str, operator: Any, values: Iterable[Any]) -> str:
    if operator == "Exists":
        return f"has({name})"
    if operator == "DoesNotExist":
        return f"! has({name})"
    listed = ", ".join(f"'{_checked(value)}'" for value in values)
    if operator in ("In", "NotIn") and listed:
        return f"{name} {'in' if operator == 'In' else 'not in'} {{ {listed} }}"
    raise Untranslatable(f"operator {display(operator)} of label {name} cannot be used")


def _checked(text: Any) -> str:
    """Return a text that can stand in a selector, where strings have no escapes. Kubernetes accepts no other labels either."""
    if not isinstance(text, str) or "'" in text:
        raise Untranslatable(f"{display(text)} is not of a label")
    return text


def _ports(given: Iterable[Json]) -> Iterator[tuple[str, Ports]]:
    """Yield each protocol with its ports, none for all of them. Without any port, the protocol is empty: all are allowed."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    names: dict[str, list[str]] = {}
    for each in given:
        protocol = each.get("protocol") or _DEFAULT_PROTOCOL
        if protocol not in _PROTOCOLS:
            raise Untranslatable(f"protocol {display(protocol)} is not one of {', '.join(_PROTOCOLS)}")
        numbered, named = ranges.setdefault(protocol, []), names.setdefault(protocol, [])
        port = each.get("port")
        if isinstance(port, str) and port:
            named.append(port)
        else:
            numbered.append((0, _LAST_PORT) if port is None else _range(port, each.get("endPort")))
    if not ranges:
        yield "", []
    for protocol, found in sorted(ranges.items()):
        merged = _merged(found)
        yield protocol, [] if (0, _LAST_PORT) in merged else [*map(_port, merged), *dict.fromkeys(names[protocol])]


def _range(first: Any, last: Any) -> tuple[int, int]:
    last = first if last is None else last
    if type(first) is not int or type(last) is not int or not 0 < first <= last <= _LAST_PORT:
        raise Untranslatable(f"{display(first)} to {display(last)} are not ports")
    return first, last


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same ports as sorted ranges that neither overlap nor touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _port(ports: tuple[int, int]) -> int | str:
    first, last = ports
    return first if first == last else f"{first}:{last}"
