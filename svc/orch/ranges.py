"""Ranges of pod addresses that the orchestrator has given to a node (2.5, 2.7), and whether a deployment goes by them (R9)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.model.errors import Code, PeerError

Json = dict[str, Any]

VARIABLE: Final = "USE_POD_CIDR"
_REMEDY: Final = "have the orchestrator give ranges to nodes (--allocate-node-cidrs, --cluster-cidr), or write a CIDR as subnet"
_TRUE: Final = ("true", "t", "1")


def node_ranges(node: Json, wanted: Iterable[int]) -> dict[int, str]:
    """The one of each family wanted, from the `spec.podCIDRs` of the orchestrator's object. PeerError naming the node."""
    name = node["metadata"]["name"]
    given: dict[int, list[str]] = {4: [], 6: []}
    for text in (node.get("spec") or {}).get("podCIDRs") or ():
        given[_cidr(name, text).version].append(text)
    for family in sorted(wanted):
        if len(given[family]) != 1:
            raise _not_one(name, family, given[family])
    return {family: given[family][0] for family in wanted}


def uses_pod_cidr(environment: Mapping[str, str]) -> bool:
    """Whether the programs around this one are told to route whole ranges of nodes."""
    return environment.get(VARIABLE, "").lower() in _TRUE


def _cidr(name: str, text: str) -> Cidr:
    try:
        return Cidr(text)
    except ValueError as fault:
        msg = f"node {name!r} has a faulty pod CIDR: {text!r} is not a CIDR ({fault})"
        raise PeerError(msg, details="correct spec.podCIDRs of the node", code=Code.ORCHESTRATOR) from None


def _not_one(name: str, family: int, given: list[str]) -> PeerError:
    word = "usePodCidr" if family == 4 else "usePodCidrIPv6"
    if given:
        msg = f"node {name!r} has {len(given)} IPv{family} pod CIDRs ({', '.join(given)}), and {word} means one"
        return PeerError(msg, details="leave one in spec.podCIDRs, or write the CIDR as subnet", code=Code.ORCHESTRATOR)
    return PeerError(f"node {name!r} has no IPv{family} pod CIDR for {word}", details=_REMEDY, code=Code.ORCHESTRATOR)
