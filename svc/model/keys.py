"""Identities of what a datastore holds, independent of how a store spells them."""

from svc._core.cidr import Cidr
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class BlockKey:
    """One address block."""

    cidr: Cidr


@dataclass(frozen=True, slots=True)
class AffinityKey:
    """A host's claim on a block. `kind` is `host` or `virtual`."""

    host: str
    cidr: Cidr
    kind: str = "host"


@dataclass(frozen=True, slots=True)
class HandleKey:
    """Who holds addresses: every address of one attachment has the same handle."""

    handle: str


@dataclass(frozen=True, slots=True)
class HostKey:
    """What old programs kept of a host. It is deleted with the host: nobody reads or writes it."""

    host: str


@dataclass(frozen=True, slots=True)
class NodeClaimKey:
    """The claim on a node's name: which machine and state directory assign addresses under it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeFenceKey:
    """What write transactions under a node's name compare. Only datastores with transactions have it."""

    node: str


@dataclass(frozen=True, slots=True)
class IpamConfigKey:
    """The one record of IPAM settings."""


@dataclass(frozen=True, slots=True)
class ResourceKey:
    """A resource of the API group: `kind` as in its manifest (`IPPool`), `namespace` empty for cluster-wide kinds."""

    kind: str
    name: str
    namespace: str = ""


IPAM_CONFIG = "IPAMConfig"  # what the record of IPAM settings is called where kinds are counted

Key = BlockKey | AffinityKey | HandleKey | HostKey | NodeClaimKey | NodeFenceKey | IpamConfigKey | ResourceKey


@dataclass(frozen=True, slots=True)
class BlockQuery:
    """All blocks, or those of one IP version."""

    version: int = 0


@dataclass(frozen=True, slots=True)
class AffinityQuery:
    """All affinities of one kind, or of one host, or of one host and IP version."""

    host: str = ""
    version: int = 0
    kind: str = "host"


@dataclass(frozen=True, slots=True)
class HandleQuery:
    """All handles."""


@dataclass(frozen=True, slots=True)
class NodeClaimQuery:
    """The claim on a node's name, and its fence."""

    node: str


@dataclass(frozen=True, slots=True)
class ResourceQuery:
    """All resources of a kind, of one namespace, with names that start with `prefix`, in a namespace if they have one."""

    kind: str
    namespace: str = ""
    prefix: str = ""


Query = BlockQuery | AffinityQuery | HandleQuery | NodeClaimQuery | ResourceQuery


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
