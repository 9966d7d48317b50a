"""Pod CIDRs of a node (2.5, 2.7), and whether a deployment routes by them (R9)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.model.errors import Code, PeerError

Json = dict[str, Any]

VARIABLE: Final = "USE_POD_CIDR"
_REMEDY: Final = "have Kubernetes give ranges to nodes (--allocate-node-cidrs, --cluster-cidr), or write a CIDR as subnet"
_TRUE: Final = ("true", "t", "1")


def node_ranges(node: Json, wanted: Iterable[int]) -> dict[int, str]:
    """Return the pod CIDR of each wanted family of a Node. Raise PeerError unless it has exactly one of each."""
    name = node["metadata"]["name"]
    given: dict[int, list[str]] = {4: [], 6: []}
    for text in (node.get("spec") or {}).get("podCIDRs") or ():
        try:
            given[Cidr(text).version].append(text)
        except ValueError as error:
            msg = f"node {name!r} has an invalid pod CIDR: {text!r} is not a CIDR ({error})"
            raise PeerError(msg, details="correct spec.podCIDRs of the node", code=Code.ORCHESTRATOR) from None
    for family in sorted(wanted):
        if len(given[family]) != 1:
            raise _not_one(name, family, given[family])
    return {family: given[family][0] for family in wanted}


def uses_pod_cidr(environment: Mapping[str, str]) -> bool:
    """Return True if the environment says that addresses come from pod CIDRs, so that blocks do not show the node of one."""
    return environment.get(VARIABLE, "").lower() in _TRUE


def config_warning(plugin: str, datastore: str, environment: Mapping[str, str]) -> str:
    """Return a warning if a network with this IPAM plugin and datastore requires pod CIDRs, and this is not set; else empty."""
    if plugin != "host-local" or datastore != "orch" or uses_pod_cidr(environment):
        return ""
    return (
        f"the network's addresses are host-local's and its datastore is the Kubernetes API, but {VARIABLE} is not true "
        "here: set it for svc-agent, the node agent, the data-path proxy and the controllers, or no node finds another's pods"
    )


def _not_one(name: str, family: int, given: list[str]) -> PeerError:
    word = "usePodCidr" if family == 4 else "usePodCidrIPv6"
    if given:
        msg = f"node {name!r} has {len(given)} IPv{family} pod CIDRs ({', '.join(given)}), and {word} means one"
        return PeerError(msg, details="leave one in spec.podCIDRs, or write the CIDR as subnet", code=Code.ORCHESTRATOR)
    return PeerError(f"node {name!r} has no IPv{family} pod CIDR for {word}", details=_REMEDY, code=Code.ORCHESTRATOR)
