"""Whether something uses an allocated address, as far as the datastore and the Kubernetes API can show it.

An allocation is unverifiable if neither an endpoint nor a pod need show its use: a container that is not a pod, a further
interface, a plugin in the IPAM role below another main plugin. Only the agent of its node can tell whether it is in use, also
if the node is not registered any more.
"""

from collections import Counter
from datetime import datetime, timezone

from svc.admin.ipam_check.findings import CONFIRM_SECONDS, SETTLE_SECONDS
from svc.admin.ipam_check.observation import Allocation, Observation
from svc.admin.ipam_check.owners import CONTAINER, SERVICE, TUNNEL, VM, is_of_one, kind_of
from svc.admin.ipam_check.uses import ENDPOINT, POD, Use
from svc.attach.handles import handle_of
from svc.values import dataclass

USED, LEAKED, UNVERIFIABLE, COOLDOWN, RESERVED = "used", "leaked", "unverifiable", "cooldown", "reserved"
_PodOnNode = tuple[str, str]  # nodes without the Kubernetes API may have pods of the same name


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of an allocated address, the reason, and what uses it.

    `lacks_endpoint` is whether only a missing endpoint shows it unused. An administrator may have deleted that of a live pod.
    """

    state: str
    reason: str = ""
    uses: tuple[Use, ...] = ()
    lacks_endpoint: bool = False


class Verdicts:
    """Verdicts about the allocations of one observation."""

    def __init__(self, found: Observation) -> None:
        self._found = found
        self._uses = found.uses
        self._handles: dict[_PodOnNode, tuple[str, ...]] = {}  # in use, of pods without a known container
        self._newest: dict[_PodOnNode, str] = {}  # when the newest address in use was allocated
        names = found.place.names
        self._wired = {handle_of(names, network, "") for network in found.place.wired_networks}  # starts of handles
        for allocation in found.allocations():
            for use in self._uses.by_address.get(allocation.address, ()):
                self._learn(allocation, use)

    def of(self, allocation: Allocation) -> Verdict:
        """Return the verdict about an address that is not free."""
        if not allocation.is_held:
            return Verdict(COOLDOWN if allocation.attribute.released_at else RESERVED)
        if uses := self._uses.by_address.get(allocation.address):
            return Verdict(USED, uses=uses)
        owner = allocation.owner
        node, kind = owner.get("node", ""), kind_of(owner)
        if kind == TUNNEL:
            return self._of_tunnel(node)
        if kind == SERVICE:
            return self._of_service(f"{owner.get('namespace')}/{owner['service']}")
        if kind in (VM, CONTAINER):
            return Verdict(UNVERIFIABLE, "no endpoint or pod has to show its use")
        return self._of_pod(allocation, f"{owner['namespace']}/{owner['pod']}", node)

    def count(self) -> Counter[str]:
        """Return the number of addresses in each state."""
        return Counter(self.of(allocation).state for allocation in self._found.allocations())

    def _of_tunnel(self, node: str) -> Verdict:
        if self._uses.unreadable_nodes and node in ("", *self._uses.unreadable_nodes):
            return Verdict(UNVERIFIABLE, "a node cannot be read")
        return Verdict(LEAKED, f"no tunnel of node {node!r} has it")

    def _of_service(self, service: str) -> Verdict:
        if not self._uses.knows_services:
            return Verdict(UNVERIFIABLE, "without the Kubernetes API its service cannot be read")
        return Verdict(LEAKED, f"service {service} does not have it")

    def _of_pod(self, allocation: Allocation, pod: str, node: str) -> Verdict:
        handle = allocation.attribute.handle_id or ""
        by_node = self._uses.containers.get(pod, {})
        if allocation.owner["namespace"] in self._uses.unreadable:
            return Verdict(UNVERIFIABLE, "an endpoint of its namespace cannot be read")
        if self._uses.knows_pods and (reason := self._why_no_pod(pod)):
            return Verdict(LEAKED, reason)
        if handle == pod.replace("/", ".") or is_of_one(handle, by_node.values()):
            return Verdict(UNVERIFIABLE, f"the endpoint of pod {pod} does not have it, but its sandbox may be the present one")
        if "" in by_node.get(node, ()):
            return Verdict(UNVERIFIABLE, f"an endpoint of pod {pod} does not name its sandbox")
        if by_node and not node:
            return Verdict(UNVERIFIABLE, f"its node is not recorded, and pod {pod} has endpoints")
        if node in by_node or self._has_successor(pod, node, handle):
            return self._of_other_sandbox(allocation, pod, node)
        if self._is_wired(handle) and (reason := self._why_no_endpoint(pod, node)):
            return Verdict(LEAKED, reason, lacks_endpoint=not self._uses.knows_pods)
        return Verdict(UNVERIFIABLE, f"pod {pod} has not reported it")

    def _of_other_sandbox(self, allocation: Allocation, pod: str, node: str) -> Verdict:
        """Return the verdict about an address whose pod shows another sandbox on its node, which may be the earlier one.

        The times are those of one node, so its clock need not be right.
        """
        if allocation.owner.get("timestamp", "") > self._newest.get((pod, node), ""):
            return Verdict(UNVERIFIABLE, f"it was allocated later than the address that pod {pod} shows")
        return Verdict(LEAKED, f"pod {pod} has another sandbox now")

    def _why_no_pod(self, pod: str) -> str:
        state = self._uses.pods.get(pod)
        if state is None:
            return f"pod {pod} {self._uses.pods_without_address.get(pod, 'does not exist')}"
        return f"pod {pod} has finished" if state.is_finished else ""

    def _why_no_endpoint(self, pod: str, node: str) -> str:
        """Return why a pod has no endpoint on this node, in a network that has endpoints; empty if it may get one.

        In other networks the node proves nothing: the IPAM plugin by itself may know it by another name than Kubernetes does.
        The pod's node must be registered, or else all nodes may have other names in the datastore.
        """
        if not self._uses.knows_pods:
            return f"pod {pod} has no endpoint"
        present = self._uses.pods[pod].node
        is_elsewhere = node not in ("", present) and present in self._found.nodes
        return f"pod {pod} is on node {present!r} now" if is_elsewhere else ""

    def _has_successor(self, pod: str, node: str, handle: str) -> bool:
        """Return whether the pod uses an address of another container in the same network, on the same node."""
        network, _, container = handle.rpartition(".")
        others = (other.rpartition(".") for other in self._handles.get((pod, node), ()))
        return any(other[0] == network and other[2] != container for other in others)

    def _is_wired(self, handle: str) -> bool:
        """Return whether the network of the handle has endpoints, so that an attachment without one does not exist."""
        for start in self._wired:
            container = handle.removeprefix(start)
            if container != handle and container[:1].isalnum() and "." not in container:
                return True
        return False

    def _learn(self, allocation: Allocation, use: Use) -> None:
        handle, owner = allocation.attribute.handle_id or "", allocation.owner
        pod = use.owner, owner.get("node", "")
        if f"{owner.get('namespace')}/{owner.get('pod')}" == use.owner:
            self._newest[pod] = max(self._newest.get(pod, ""), owner.get("timestamp", ""))
        if use.kind == POD and use.owner not in self._uses.containers:
            self._handles[pod] = (*self._handles.get(pod, ()), handle)
        if use.kind == ENDPOINT and use.container and handle.endswith(f".{use.container}"):
            self._wired.add(handle.removesuffix(use.container))


def since(allocation: Allocation) -> str:
    """Return when the address was allocated (RFC 3339); empty if it is not recorded."""
    text = allocation.owner.get("timestamp", "")
    return f"{text[:10]}T{text[11:19]}Z" if _parsed(text) else ""


def age(allocation: Allocation, now: datetime) -> float | None:
    """Return the seconds since the address was allocated; None if that is not recorded."""
    created = _parsed(allocation.owner.get("timestamp", ""))
    return None if created is None else (now - created).total_seconds()


def wait_for(allocation: Allocation, now: datetime) -> float:
    """Return the seconds after which an ADD or a DEL that is in flight no longer looks like a leak."""
    seconds = age(allocation, now)
    return CONFIRM_SECONDS if seconds is None or seconds < CONFIRM_SECONDS else SETTLE_SECONDS


def _parsed(text: str) -> datetime | None:
    """Parse the start of a time such as `2026-01-31 23:59:59.000012 +0000 UTC`."""
    try:
        return datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
