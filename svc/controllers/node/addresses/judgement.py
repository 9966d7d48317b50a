"""Whether a pod or a node still has an allocated address. Pure: it reads neither a clock nor a datastore.

Each reason for which an address counts as leaked is final: once true of an allocation, it stays true.

1. A pod never changes its node, and a finished pod never runs again. A pod of the same name that exists later has other
   containers, and so another handle.
2. A node has one sandbox of a pod at a time. So an allocation is over if a later one of the same pod, on the same node, is
   shown by an endpoint.

Therefore a reason that was read after the allocation holds until the allocation ends. A release that compares handle and
sequence number needs no lock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from svc.admin.ipam_check.owners import POD, is_of_one, network_of
from svc.controllers.node.addresses.held import Held, is_own
from svc.controllers.pods import PodRow
from svc.controllers.stored_endpoints import EndpointRow

VALID, UNVERIFIABLE, WITH_NODE, LEAKED = "valid", "unverifiable", "with its node", "leaked"


class Verdict(NamedTuple):
    """The state of an allocation, and the reason."""

    state: str
    reason: str = ""


class Facts:
    """What the tables show. `nodes` maps each Node of the datastore to its name in Kubernetes; empty if it has none there.

    `networks` are the starts of handles whose allocations have endpoints; in other networks another plugin may be the main one.
    `tunnels` has the nodes that have an address at a tunnel.
    """

    def __init__(
        self,
        pods: Mapping[str, PodRow],
        endpoints: Collection[EndpointRow] = (),
        nodes: Mapping[str, str] | None = None,
        kube_nodes: Collection[str] = (),
        networks: Collection[str] = (),
        tunnels: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.pods = pods
        self.endpoints = endpoints
        self.nodes = nodes or {}
        self.kube_nodes = kube_nodes
        self.networks = networks
        self.tunnels = tunnels or {}

    @cached_property
    def endpoints_by_pod(self) -> Mapping[str, tuple[EndpointRow, ...]]:
        """The stored endpoints of each pod."""
        found: dict[str, tuple[EndpointRow, ...]] = {}
        for row in self.endpoints:
            found[row.pod] = (*found.get(row.pod, ()), row)
        return found

    @cached_property
    def endpoints_by_address(self) -> Mapping[str, tuple[EndpointRow, ...]]:
        """The stored endpoints that have each address."""
        found: dict[str, tuple[EndpointRow, ...]] = {}
        for row in self.endpoints:
            for address in row.addresses:
                found[address] = (*found.get(address, ()), row)
        return found

    @cached_property
    def shown(self) -> frozenset[str]:
        """The addresses that pods show, of which none has finished."""
        return frozenset(address for row in self.pods.values() for address in row.addresses)

    @cached_property
    def registered(self) -> frozenset[str]:
        """The nodes of Kubernetes whose name in the datastore is known."""
        return frozenset(filter(None, self.nodes.values()))

    def kube_name(self, node: str) -> str:
        """Return the name in Kubernetes of a node of the datastore; empty if Kubernetes never had it."""
        return self.nodes.get(node, node)

    def has_lost(self, node: str) -> bool:
        """Return whether Kubernetes lacks a node that it had."""
        name = self.kube_name(node)
        return bool(name) and name not in self.kube_nodes


def judge(held: Held, facts: Facts, row: PodRow | None, endpoints: Sequence[EndpointRow], siblings: Iterable[Held]) -> Verdict:
    """Return the verdict about an allocation of a pod.

    `row` and `endpoints` are those of its pod, from the tables or read now. `siblings` are the allocations of its pod.
    """
    if obstacle := why_unverifiable(held, facts):
        return Verdict(UNVERIFIABLE, obstacle)
    if held.address in facts.shown or (row is not None and held.address in row.addresses):
        return Verdict(VALID, "a pod shows it")
    if any(not is_own(held, each) for each in facts.endpoints_by_address.get(held.address, ())):
        return Verdict(VALID, "an endpoint has it")
    if row is not None and row.is_unreadable:
        return Verdict(VALID, "its pod cannot be read")
    if any(each.is_unreadable for each in endpoints):
        return Verdict(VALID, "an endpoint of its pod cannot be read")
    reason = _why_over(held, facts, row, endpoints, siblings)
    return Verdict(LEAKED, reason) if reason else Verdict(VALID)


def why_unverifiable(held: Held, facts: Facts) -> str:
    """Return why only the agent of its node can judge an allocation; empty if it is one of a pod with endpoints."""
    if held.kind != POD:
        return f"its owner is a {held.kind}"
    if not held.node:
        return "its node is not recorded"
    if not facts.kube_name(held.node):
        return "Kubernetes never had its node"
    if held.sequence is None:
        return "its allocation has no sequence number"
    return "" if network_of(held.handle) in facts.networks else "its network has no endpoints"


def containers_of(node: str, row: PodRow, endpoints: Iterable[EndpointRow]) -> tuple[str, ...]:
    """Return the containers of a pod's endpoints on this node of the datastore; an empty one if an endpoint names none."""
    return (*row.containers, *(each.container for each in endpoints if each.node == node))


def _why_over(held: Held, facts: Facts, row: PodRow | None, endpoints: Sequence[EndpointRow], siblings: Iterable[Held]) -> str:
    """Return why the allocation is over; empty if its pod may have it."""
    if row is None:
        return f"pod {held.pod} does not exist"
    if row.is_finished:
        return f"pod {held.pod} has finished"
    if row.node != facts.kube_name(held.node):
        # an unregistered node may be the one of the allocation, which may have another name in the datastore
        return f"pod {held.pod} is on node {row.node} now" if row.node in facts.registered else ""
    containers = containers_of(held.node, row, endpoints)
    if not containers or "" in containers or is_of_one(held.handle, [containers]):
        return ""
    later = [each.since for each in siblings if each.node == held.node and is_of_one(each.handle, [containers])]
    if not held.since or held.since > max(later, default=""):
        return ""  # the container of an ADD in flight, which writes the endpoint after the addresses
    return f"pod {held.pod} has another container now"
