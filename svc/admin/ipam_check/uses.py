"""Which addresses are in use, and by what: endpoints, pods, tunnels of nodes, and services.

An endpoint, a tunnel or a service claims its address. The status of a pod lags behind: it shows that an address may still be in
use, but not that the address should be allocated.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from sys import intern
from typing import Any, Final, TypeVar

import orjson

from svc._core.cidr import Address
from svc.model import json_fields
from svc.model.annotations import UNMANAGED
from svc.model.keys import ResourceKey
from svc.model.mapped import allocated_form
from svc.model.pod_endpoint import is_finished, network_status_addresses
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass, field
from svc.values import dataclass as value

Json = dict[str, Any]
Read = TypeVar("Read")

ENDPOINT, POD, TUNNEL, SERVICE = "endpoint", "pod", "tunnel", "service"
TUNNELS: Final = (  # section of a node's spec, and field in it
    ("bgp", "ipv4IPIPTunnelAddr"),
    ("", "ipv4VXLANTunnelAddr"),
    ("", "ipv6VXLANTunnelAddr"),
    ("wireguard", "interfaceIPv4Address"),
    ("wireguard", "interfaceIPv6Address"),
)


@value(frozen=True, slots=True)
class Use:
    """One use of an address. `owner` is NAMESPACE/POD, a container, a node, or NAMESPACE/SERVICE.

    An endpoint has an interface, and a container if it names one.
    """

    kind: str
    owner: str
    node: str = ""
    container: str = ""
    interface: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Equal for the same use in the same place."""
        return self.kind, self.owner, self.node, self.interface

    def __str__(self) -> str:
        return f"{self.kind} of {self.owner}" if self.kind in (ENDPOINT, TUNNEL) else f"{self.kind} {self.owner}"


@value(frozen=True, slots=True)
class PodState:
    """A pod that exists. `has_address` is whether it has reported one."""

    node: str
    has_address: bool
    is_finished: bool
    is_deleted: bool  # its DEL may be in flight


@dataclass(slots=True)
class Uses:
    """The addresses in use. `pods` has the pods of the cluster by NAMESPACE/NAME, if `knows_pods`; `pods_without_address` those
    that need none, with the reason.

    `containers` are those with an endpoint, by owner and node, and an empty one if an endpoint names none. `bypassing` are the
    addresses that pods have without IPAM, on request. `invalid` has the errors of endpoints and nodes whose fields cannot
    be read. `unreadable` are the namespaces of unreadable endpoints, `unreadable_nodes` the nodes whose tunnels are unknown.
    """

    by_address: dict[Address, tuple[Use, ...]] = field(default_factory=dict)
    pods: dict[str, PodState] = field(default_factory=dict)
    pods_without_address: dict[str, str] = field(default_factory=dict)
    containers: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    bypassing: set[Address] = field(default_factory=set)
    knows_pods: bool = False
    knows_services: bool = False
    invalid: dict[str, str] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    unreadable_nodes: set[str] = field(default_factory=set)

    def add(self, address: Address, use: Use) -> None:
        """Add a use. A pod, a node or a service that shows its address several times counts once."""
        present = self.by_address.get(address, ())
        if all(other.identity != use.identity for other in present):
            self.by_address[address] = (*present, use)

    def add_endpoint(self, place: str, key: ResourceKey, endpoint: Resource) -> None:
        """Add the addresses of an endpoint, of any interface. Its key has its namespace, also if its metadata are damaged."""
        spec, errors = endpoint.spec, list[str]()
        texts = [_read(errors, json_fields.text, spec, name) for name in ("pod", "containerID", "node")]
        pod, container, node = (text or "" for text in texts)
        owner, node = f"{key.namespace}/{pod}" if pod else container or key.name, intern(node)
        if pod or container:
            by_node = self.containers.setdefault(owner, {})
            by_node[node] = tuple(dict.fromkeys((*by_node.get(node, ()), container)))
        networks = _read(errors, json_fields.items, spec, "ipNetworks") or ()
        use = Use(ENDPOINT, owner, node, container, intern(str(spec.get("endpoint") or key.name)))
        errors += (f"ipNetworks: {error}" for error in self._add_all(map(str, networks), use))
        if not node:
            errors.append("node is missing")
        if errors:
            self.invalid[place] = f"spec.{errors[0]}"
            self.unreadable.add(key.namespace)

    def add_pod(self, names: Names, pod: Json) -> None:
        """Add the addresses in the status of a pod, and those that a meta plugin reports of its further interfaces."""
        metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        name, node = f"{metadata.get('namespace')}/{metadata.get('name')}", intern(str(spec.get("nodeName") or ""))
        if not node or spec.get("hostNetwork"):
            self.pods_without_address[name] = "has the network of its node" if node else "has no node"
            return
        reported = [str(item.get("ip")) for item in status.get("podIPs") or () if item.get("ip")]
        self.pods[name] = PodState(node, bool(reported), is_finished(pod), bool(metadata.get("deletionTimestamp")))
        if not is_finished(pod):
            notes = metadata.get("annotations") or {}
            self._add_all(dict.fromkeys([*reported, *network_status_addresses(pod)]), Use(POD, name, node))
            self.bypassing.update(_addresses(notes.get(f"{names.annotation_prefix}/{UNMANAGED}")))

    def add_node(self, place: str, key: ResourceKey, node: Resource) -> None:
        """Add the tunnel addresses of a node."""
        errors: list[str] = []
        for section, name in TUNNELS:
            part = _read(errors, json_fields.pairs, node.spec, section) if section else node.spec
            if part and (text := _read(errors, json_fields.text, part, name)):
                errors += (f"{name}: {error}" for error in self._add_all([text], Use(TUNNEL, key.name, key.name)))
        if errors:
            self.invalid[place] = f"spec.{errors[0]}"
            self.unreadable_nodes.add(key.name)

    def add_service(self, service: Json) -> None:
        """Add the addresses that a load balancer has given to a service."""
        metadata, balancer = service["metadata"], (service.get("status") or {}).get("loadBalancer") or {}
        found = [str(item.get("ip")) for item in balancer.get("ingress") or () if item.get("ip")]
        self._add_all(found, Use(SERVICE, f"{metadata.get('namespace')}/{metadata.get('name')}"))

    def claims(self, address: Address) -> tuple[Use, ...]:
        """Return the uses of an address that need an allocation."""
        return tuple(use for use in self.by_address.get(address, ()) if use.kind != POD)

    def _add_all(self, texts: Iterable[str], use: Use) -> list[str]:
        """Add the uses of addresses, and return the errors of those that cannot be read."""
        errors = []
        for text in texts:
            try:
                self.add(allocated_form(text), use)
            except ValueError as error:
                errors.append(str(error))
        return errors


def _read(errors: list[str], read: Callable[[Json, str], Read], data: Json, name: str) -> Read | None:
    """Return a field. If it has another type, add the error and return None."""
    try:
        return read(data, name)
    except ValueError as error:
        errors.append(str(error))
        return None


def _addresses(note: str | None) -> Iterator[Address]:
    for text in _items(note):
        with suppress(ValueError):
            if isinstance(text, str):
                yield allocated_form(text)


def _items(note: str | None) -> list[Any]:
    try:
        found = orjson.loads(note or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []
