"""Keys and queries of a datastore, independent of the names in a store. The type of a key determines the type of its value."""

from typing import TYPE_CHECKING, Any, Generic

from svc._core.cidr import Cidr
from svc.model.claim import NodeClaim, NodeFence
from svc.model.ipam import Affinity, Block, Handle, IpamConfig
from svc.model.resource import Resource
from svc.values import dataclass, field

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with `default`, which only type checkers use

    V = TypeVar("V", default=Any)
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)


class Key(Generic[V_co]):
    """The key of a value of this type."""

    __slots__ = ()


class Query(Generic[V_co]):
    """A query for values of this type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BlockKey(Key[Block]):
    """One block."""

    cidr: Cidr


@dataclass(frozen=True, slots=True)
class AffinityKey(Key[Affinity]):
    """The affinity of a host for a block. `kind` is `host` or `virtual`."""

    host: str
    cidr: Cidr
    kind: str = "host"


NODE, VIRTUAL = HOST_KINDS = ("host", "virtual")


@dataclass(frozen=True, slots=True)
class Host:
    """A node or a virtual host, which claims blocks. `affinity` is the value of this field in its blocks."""

    name: str
    kind: str = NODE
    affinity: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "affinity", f"{self.kind}:{self.name}")

    @staticmethod
    def of(affinity: str | None) -> "Host | None":
        """Return the host of a block with this affinity; None for an unclaimed block."""
        kind, _, name = (affinity or "").partition(":")
        return Host(name, kind) if name else None

    def affinity_key(self, cidr: Cidr) -> AffinityKey:
        """Return the key of the host's affinity to a block."""
        return AffinityKey(self.name, cidr, self.kind)

    def __str__(self) -> str:
        return f"node {self.name!r}" if self.kind == NODE else f"{self.kind} host {self.name!r}"


@dataclass(frozen=True, slots=True)
class HandleKey(Key[Handle]):
    """A handle: all addresses of one attachment have the same handle."""

    handle: str


@dataclass(frozen=True, slots=True)
class LegacyHostKey(Key[Any]):
    """A record of old programs for a host. It is deleted with the host, and not read or written otherwise."""

    host: str


@dataclass(frozen=True, slots=True)
class NodeClaimKey(Key[NodeClaim]):
    """The claim on a node's name, by machine and state directory."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeFenceKey(Key[NodeFence]):
    """The fence that write transactions under a node's name compare. Only datastores with transactions have it."""

    node: str


@dataclass(frozen=True, slots=True)
class IpamConfigKey(Key[IpamConfig]):
    """The single record of IPAM settings."""


@dataclass(frozen=True, slots=True)
class ResourceKey(Key[Resource]):
    """A resource of the API group. `kind` is that of its manifest (`IPPool`); `namespace` is empty for cluster-wide kinds."""

    kind: str
    name: str
    namespace: str = ""


IPAM_CONFIG = "IPAMConfig"  # the kind of the IPAM settings, for generations


@dataclass(frozen=True, slots=True)
class BlockQuery(Query[Block]):
    """All blocks, or those of one IP version."""

    version: int = 0


@dataclass(frozen=True, slots=True)
class AffinityQuery(Query[Affinity]):
    """All affinities of one kind, or of one host, or of one host and IP version."""

    host: str = ""
    version: int = 0
    kind: str = "host"


@dataclass(frozen=True, slots=True)
class HandleQuery(Query[Handle]):
    """All handles."""


@dataclass(frozen=True, slots=True)
class NodeClaimQuery(Query[NodeClaim | NodeFence]):
    """The claim on a node's name, and its fence."""

    node: str


@dataclass(frozen=True, slots=True)
class ResourceQuery(Query[Resource]):
    """All resources of a kind, of a namespace, or with a name `prefix`, which for a namespaced kind requires the namespace.

    `node` limits endpoints to those of a node, where the datastore can select them; otherwise it has no effect.
    """

    kind: str
    namespace: str = ""
    prefix: str = ""
    node: str = ""


def describe(key: Key) -> str:
    """Return the noun of a key's object with its name, for errors."""
    match key:
        case ResourceKey(kind=kind, name=name, namespace=namespace):
            return f"{kind} {(f'{namespace}/{name}' if namespace else name)!r}"
        case BlockKey(cidr=cidr):
            return f"block {cidr}"
        case AffinityKey(host=host, cidr=cidr, kind=kind):
            return f"the affinity of {Host(host, kind)} to block {cidr}"
        case HandleKey(handle=handle):
            return f"handle {handle!r}"
        case NodeClaimKey(node=node) | NodeFenceKey(node=node):
            return f"the claim on node {node!r}"
        case LegacyHostKey(host=host):
            return f"the record of host {host!r}"
    return "the object of the IPAM settings"


def counted_kind(key: Key) -> str:
    """Return the kind whose generation a change of this key advances; empty if none."""
    if isinstance(key, IpamConfigKey):
        return IPAM_CONFIG
    return key.kind if isinstance(key, ResourceKey) else ""


PLURALS = {
    "IPPool": "ippools",
    "IPReservation": "ipreservations",
    "Node": "nodes",
    "Profile": "profiles",
    "ClusterInformation": "clusterinformations",
    "WorkloadEndpoint": "workloadendpoints",
    "HostEndpoint": "hostendpoints",
    "KubeControllersConfiguration": "kubecontrollersconfigurations",
    "NetworkPolicy": "networkpolicies",
    "GlobalNetworkPolicy": "globalnetworkpolicies",
}
CARRIED = {
    "BGPConfiguration": "bgpconfigurations",
    "BGPFilter": "bgpfilters",
    "BGPPeer": "bgppeers",
    "FelixConfiguration": "felixconfigurations",
    "GlobalNetworkSet": "globalnetworksets",
    "NetworkSet": "networksets",
    "StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies",
    "StagedKubernetesNetworkPolicy": "stagedkubernetesnetworkpolicies",
    "StagedNetworkPolicy": "stagednetworkpolicies",
    "Tier": "tiers",
}
"""Kinds of other programs, which svc neither reads nor writes, except to move them to another datastore."""

OPERATED = {"Installation": "installations"}
"""Kinds of the operator's API group. Only the Kubernetes API has them, and no move does."""

ALL_PLURALS = PLURALS | CARRIED | OPERATED
NAMESPACED = frozenset(
    {"WorkloadEndpoint", "NetworkPolicy", "NetworkSet", "StagedNetworkPolicy", "StagedKubernetesNetworkPolicy"}
)
