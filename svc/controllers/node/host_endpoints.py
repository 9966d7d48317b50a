"""The host endpoints that follow from a node: one for all its interfaces, and those of the templates that apply to it.

Pure: it reads neither a datastore nor a clock. A malformed field of a node counts as missing, because other programs write it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check.uses import TUNNELS
from svc.controllers.configuration import Configuration, HostEndpointTemplate
from svc.model.host_endpoint import ALL_INTERFACES, endpoint_name, is_automatic, owner_label
from svc.model.resource import Resource, label_errors
from svc.model.selector import Selector, SelectorError, parse
from svc.names import Names
from svc.values import dataclass

Json = dict[str, Any]

_INTERNAL: Final = "InternalIP"
_ADDRESSES: Final = (  # sections and fields of a node's spec, in the order of the addresses; "" is spec itself
    ("bgp", "ipv4Address"),
    ("bgp", "ipv6Address"),
    *TUNNELS,
)


class Wanted(NamedTuple):
    """The wanted content of a host endpoint: everything but UID and creation time."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Json


@dataclass(frozen=True, slots=True)
class _Template:
    """A valid template."""

    given: HostEndpointTemplate
    selector: Selector
    cidrs: tuple[Cidr, ...]
    pattern: re.Pattern[str] | None


class Translation:
    """The translation of nodes with one configuration. `errors` says what is wrong with templates, which are left out."""

    def __init__(self, names: Names, configuration: Configuration) -> None:
        self.configuration = configuration
        self._names = names
        self._label = owner_label(names)
        self._profiles = [names.default_allow_profile]
        self._is_on = configuration.creates_host_endpoints
        self._has_default = configuration.creates_default_host_endpoint
        self._templates: list[_Template] = []
        self.errors: list[str] = []
        for template in configuration.host_endpoint_templates if self._is_on else ():
            try:
                self._templates.append(_checked(template))
            except ValueError as error:
                self.errors.append(f"template {template.name!r} is left out: {error}")

    def owns(self, endpoint: Resource) -> bool:
        """Return whether the label says that the controllers have created the host endpoint."""
        return is_automatic(self._names, endpoint)

    def endpoints_of(self, node: Resource) -> dict[str, Wanted]:
        """Return the host endpoints of a node by name. Of two with the same name, the first one counts."""
        found: dict[str, Wanted] = {}
        for wanted in self._all_of(node) if self._is_on else ():
            found.setdefault(wanted.name, wanted)
        return found

    def _all_of(self, node: Resource) -> Iterator[Wanted]:
        addresses = expected_addresses(node.spec)
        if self._has_default:
            yield self._made(node, ALL_INTERFACES, addresses)
        for template in self._templates:
            if template.selector.matches(node.labels):
                yield from self._of_template(node, template, addresses)

    def _of_template(self, node: Resource, template: _Template, addresses: Sequence[str]) -> Iterator[Wanted]:
        """Yield the host endpoints of a template. One needs addresses, or the name of an interface, to mean something."""
        inside = [text for text in addresses if any(Address(text) in cidr for cidr in template.cidrs)]
        if template.pattern is None:
            if inside:
                yield self._made(node, "", inside, template.given)
            return
        for name, own in _interfaces(node.spec):
            if template.pattern.search(name):
                yield self._made(node, name, [*dict.fromkeys([*inside, *own])], template.given)

    def _made(
        self, node: Resource, interface: str, addresses: Sequence[str], template: HostEndpointTemplate | None = None
    ) -> Wanted:
        parts = [node.name] if template is None else [node.name, template.name, interface]
        labels = {**node.labels, **(template.labels if template else {}), self._label: self._names.controllers}
        spec = {"node": node.name, "interfaceName": interface, "expectedIPs": list(addresses), "profiles": self._profiles}
        annotations = template.annotations if template else {}
        return Wanted(endpoint_name(parts), labels, annotations, _without_empty(spec))


def differs(endpoint: Resource, wanted: Wanted) -> bool:
    """Return whether a stored host endpoint is not what it should be. Empty and missing fields are equal."""
    found = endpoint.labels, endpoint.metadata.get("annotations") or {}, _without_empty(endpoint.spec)
    return found != (wanted.labels, wanted.annotations, wanted.spec)


def expected_addresses(spec: Json) -> list[str]:
    """Return the addresses of a node without their prefix lengths, in the order in which host endpoints have them."""
    found = [_object(spec.get(section) if section else spec).get(field) for section, field in _ADDRESSES]
    found += [each.get("address") for each in _objects(spec.get("addresses")) if each.get("type") == _INTERNAL]
    known = dict.fromkeys(_valid(found))
    for _, own in _interfaces(spec):
        known.update(dict.fromkeys(own))
    return [*known]


def _interfaces(spec: Json) -> Iterator[tuple[str, list[str]]]:
    """Yield the interfaces of a node: name and addresses."""
    for each in _objects(spec.get("interfaces")):
        name, addresses = each.get("name"), each.get("addresses")
        if isinstance(name, str) and name:
            yield name, [*_valid(addresses if isinstance(addresses, list) else ())]


def _valid(texts: Iterable[Any]) -> Iterator[str]:
    for text in texts:
        if not isinstance(text, str):
            continue
        try:
            yield str(Address(text.partition("/")[0]))
        except ValueError:
            continue


def _checked(template: HostEndpointTemplate) -> _Template:
    """Return a template with its parsed fields. Raise ValueError, with the field and a remedy, if one is invalid."""
    try:
        selector = parse(template.node_selector)
    except SelectorError as error:
        raise ValueError(f"nodeSelector: {error}: give one such as all() or rack == 'a'") from None
    try:
        pattern = re.compile(template.interface_pattern) if template.interface_pattern else None
    except re.error as error:
        what = f"interfacePattern = {template.interface_pattern!r} is not a regular expression"
        raise ValueError(f"{what}: {error}: give one such as ^eth[0-9]+$") from None
    try:
        cidrs = tuple(map(Cidr, template.interface_cidrs))
    except ValueError as error:
        raise ValueError(f"interfaceCIDRs: {error}: give one such as 10.0.0.0/8 or fd00::/8") from None
    if not template.name:
        raise ValueError("generateName is missing: give a part of the names of its host endpoints")
    for wrong in label_errors(template.labels):
        raise ValueError(wrong.line)
    return _Template(template, selector, cidrs, pattern)


def _without_empty(spec: Json) -> Json:
    return {name: value for name, value in spec.items() if value not in (None, "", [], {})}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
