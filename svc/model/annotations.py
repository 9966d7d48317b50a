"""What annotations of a pod and of its namespace may ask for, once it is read and checked."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

from svc._core.cidr import Address
from svc.values import dataclass

POOLS: Final = {4: "ipv4pools", 6: "ipv6pools"}
FAMILIES: Final = "ipFamilies"
ADDRESSES: Final = "ipAddrs"
UNMANAGED: Final = "ipAddrsNoIpam"
FLOATING: Final = "floatingIPs"
MAC: Final = "hwAddr"
SOURCE_PREFIXES: Final = "allowedSourcePrefixes"

OF_NAMESPACES: Final = frozenset(
    {*POOLS.values(), FAMILIES, ADDRESSES, UNMANAGED, FLOATING}
)  # the others are read on pods alone


@dataclass(frozen=True, slots=True)
class Features:
    """What the network configuration must allow first (`feature_control`)."""

    ip_addrs_no_ipam: bool = False
    floating_ips: bool = False


@dataclass(frozen=True, slots=True)
class AnnotationSettings:
    """What is empty was not asked for.

    `addresses` are those of `ipAddrs` or, when `unmanaged`, of `ipAddrsNoIpam`. `places` says for the name of each annotation
    that counts where it stands and what is in it; `warnings` are what was put right or left out.
    """

    pools: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    addresses: tuple[Address, ...] = ()
    unmanaged: bool = False
    floating: tuple[Address, ...] = ()
    mac: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def of_another_interface(self) -> "AnnotationSettings":
        """Without what one interface alone can have: that is the pod's first."""
        places = {name: place for name, place in self.places.items() if name not in (ADDRESSES, UNMANAGED)}
        return replace(self, addresses=(), unmanaged=False, floating=(), mac="", places=places)


NO_FEATURES: Final = Features()
NO_WISHES: Final = AnnotationSettings()
