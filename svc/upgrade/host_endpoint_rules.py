"""The work of the move to automatic host endpoints, and its obstacles (specification, 9.7).

Pure: it reads neither a datastore nor a clock. A former host endpoint is one for all interfaces of its node that the
controllers have not created. Its labels go to its node, from which the controllers give them to the automatic one. The former
one may be deleted when the automatic one of its own node has everything that policies select by.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from svc._core.cidr import Address
from svc.model.host_endpoint import ALL_INTERFACES, endpoint_name, is_automatic, owner_label
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass

TEMPORARY_LABEL: Final = "host-endpoint-upgrade"
"""The label by which the policy `allow-all-upgrade` selects host endpoints while a cluster is upgraded."""

_INTERNAL: Final = "InternalIP"


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found. `labels` has the labels that each node lacks, by the name of the node."""

    former: tuple[Resource, ...]
    labels: Mapping[str, Mapping[str, str]]
    blockers: tuple[str, ...]
    warnings: tuple[str, ...]


def examine(endpoints: Iterable[Resource], nodes: Iterable[Resource], names: Names, *, keeps_temporary: bool) -> Findings:
    """Return what has to be done. `keeps_temporary` says whether the nodes get the temporary label, too."""
    former = tuple(sorted(former_endpoints(endpoints, names), key=lambda each: each.name))
    known = {node.name: node for node in nodes}
    ignored = {owner_label(names)} | (set() if keeps_temporary else {TEMPORARY_LABEL})
    labels = _Labels(known, ignored)
    blockers = [*_own_blockers(former, known)]
    for endpoint in former:
        blockers += labels.take(endpoint)
    return Findings(former, labels.missing(), tuple(blockers), tuple(_warnings(former, names)))


def former_endpoints(endpoints: Iterable[Resource], names: Names) -> Iterator[Resource]:
    """Yield the host endpoints for all interfaces of a node that the controllers have not created."""
    for endpoint in endpoints:
        if endpoint.spec.get("interfaceName") == ALL_INTERFACES and not is_automatic(names, endpoint):
            yield endpoint


def why_not_replaced(former: Resource, endpoints: Mapping[str, Resource], node: Resource | None, names: Names) -> str:
    """Return why the automatic host endpoint of the node cannot stand in for a former one yet; empty if it can.

    `endpoints` has all host endpoints by name."""
    host = str(former.spec.get("node") or "")
    if node is None:
        return f"node {host!r} does not exist"
    name = endpoint_name([host])
    automatic = endpoints.get(name)
    if (reason := why_not_covered(host, endpoints, names)) or automatic is None:
        return reason
    missing = [
        key for key, value in _copied(former, {owner_label(names), TEMPORARY_LABEL}) if automatic.labels.get(key) != value
    ]
    if missing:
        return f"host endpoint {name!r} lacks the labels {', '.join(missing)}"
    if lacking := sorted(set(_internal_addresses(node)) - set(_addresses(automatic.spec.get("expectedIPs")))):
        return f"host endpoint {name!r} lacks the addresses {', '.join(lacking)}"
    if names.default_allow_profile not in (automatic.spec.get("profiles") or ()):
        return f"host endpoint {name!r} lacks the profile {names.default_allow_profile}"
    return ""


def why_not_covered(host: str, endpoints: Mapping[str, Resource], names: Names) -> str:
    """Return why a node has no automatic host endpoint for all its interfaces; empty if it has one."""
    name = endpoint_name([host])
    automatic = endpoints.get(name)
    if automatic is None or not is_automatic(names, automatic):
        return f"host endpoint {name!r} does not exist yet"
    covered = automatic.spec.get("node"), automatic.spec.get("interfaceName")
    if covered != (host, ALL_INTERFACES):
        return f"host endpoint {name!r} is that of interface {covered[1]!r} of node {covered[0]!r}"
    return ""


class _Labels:
    """The labels that nodes get, and from which host endpoint each comes."""

    def __init__(self, nodes: Mapping[str, Resource], ignored: set[str]) -> None:
        self._nodes = nodes
        self._ignored = ignored
        self._taken: dict[str, dict[str, tuple[str, str]]] = {}

    def take(self, endpoint: Resource) -> Iterator[str]:
        """Take the labels of a host endpoint. Yield what contradicts them."""
        host = str(endpoint.spec.get("node") or "")
        node = self._nodes.get(host)
        taken = self._taken.setdefault(host, {})
        for key, value in _copied(endpoint, self._ignored):
            other = taken.setdefault(key, (value, endpoint.name))
            if other[0] != value:
                yield (
                    f"host endpoints {other[1]} and {endpoint.name} of node {host} have different values for the label {key}: "
                    f"{other[0]!r} and {value!r}: change one of them"
                )
            present = node.labels.get(key, value) if node else value
            if present != value:
                yield (
                    f"node {host} has the label {key} = {present!r}, and its host endpoint {endpoint.name} has {value!r}: "
                    "change one of them"
                )

    def missing(self) -> dict[str, dict[str, str]]:
        """Return the labels that nodes lack."""
        found = {}
        for host, taken in self._taken.items():
            if (node := self._nodes.get(host)) is None:
                continue
            lacking = {key: value for key, (value, _) in taken.items() if key not in node.labels}
            if lacking:
                found[host] = lacking
        return found


def _own_blockers(former: Sequence[Resource], nodes: Mapping[str, Resource]) -> Iterator[str]:
    for endpoint in former:
        host = str(endpoint.spec.get("node") or "")
        if host not in nodes:
            yield f"host endpoint {endpoint.name} names node {host!r}, which does not exist: delete it, or correct spec.node"
        elif endpoint.name == endpoint_name([host]):
            yield (
                f"host endpoint {endpoint.name} has the name of the automatic one of node {host}, and not its label: "
                "create it under another name and delete this one"
            )


def _warnings(former: Sequence[Resource], names: Names) -> Iterator[str]:
    for endpoint in former:
        if names.default_allow_profile not in (endpoint.spec.get("profiles") or ()):
            yield (
                f"host endpoint {endpoint.name} has not the profile {names.default_allow_profile}, and the automatic one will: "
                "traffic that no policy selects is allowed from then on"
            )


def _copied(endpoint: Resource, ignored: set[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in endpoint.labels.items() if key not in ignored]


def _internal_addresses(node: Resource) -> list[str]:
    listed = node.spec.get("addresses")
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return _addresses([each.get("address") for each in entries if each.get("type") == _INTERNAL])


def _addresses(texts: object) -> list[str]:
    """Return addresses in their usual form. Leave out other texts."""
    found = []
    for text in texts if isinstance(texts, list) else ():
        try:
            found.append(str(Address(str(text).partition("/")[0])))
        except ValueError:
            continue
    return found
