"""Identities of what a datastore holds, independent of how a store spells them. The type of a key names that of its value."""

from typing import TYPE_CHECKING, Any, Generic

from svc._core.cidr import Cidr
from svc.model.claim import NodeClaim, NodeFence
from svc.model.ipam import Affinity, Block, Handle, IpamConfig
from svc.model.resource import Resource
from svc.values import dataclass

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which is for type checkers alone

    V = TypeVar("V", default=Any)
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)


class Key(Generic[V_co]):
    """Where a value of this type is kept."""

    __slots__ = ()


class Query(Generic[V_co]):
    """Which values of this type are wanted."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BlockKey(Key[Block]):
    """One address block."""

    cidr: Cidr


@dataclass(frozen=True, slots=True)
class AffinityKey(Key[Affinity]):
    """A host's claim on a block. `kind` is `host` or `virtual`."""

    host: str
    cidr: Cidr
    kind: str = "host"


@dataclass(frozen=True, slots=True)
class HandleKey(Key[Handle]):
    """Who holds addresses: every address of one attachment has the same handle."""

    handle: str


@dataclass(frozen=True, slots=True)
class LegacyHostKey(Key[Any]):
    """What old programs kept of a host. It is deleted with the host: nobody reads or writes it."""

    host: str


@dataclass(frozen=True, slots=True)
class NodeClaimKey(Key[NodeClaim]):
    """The claim on a node's name: which machine and state directory assign addresses under it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeFenceKey(Key[NodeFence]):
    """What write transactions under a node's name compare. Only datastores with transactions have it."""

    node: str


@dataclass(frozen=True, slots=True)
class IpamConfigKey(Key[IpamConfig]):
    """The one record of IPAM settings."""


@dataclass(frozen=True, slots=True)
class ResourceKey(Key[Resource]):
    """A resource of the API group: `kind` as in its manifest (`IPPool`), `namespace` empty for cluster-wide kinds."""

    kind: str
    name: str
    namespace: str = ""


IPAM_CONFIG = "IPAMConfig"  # what the record of IPAM settings is called where kinds are counted


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
    """All resources of a kind, of one namespace, with names that start with `prefix`, in a namespace if they have one."""

    kind: str
    namespace: str = ""
    prefix: str = ""


def counted_kind(key: Key) -> str:
    """The kind whose generation a change of this key advances; empty when none."""
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
}
NAMESPACED = frozenset({"WorkloadEndpoint"})
