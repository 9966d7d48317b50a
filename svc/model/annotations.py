"""Annotation settings: what the annotations of a pod and of its namespace request, after parsing and validation."""

from collections.abc import Mapping
from typing import Final

from svc._core.cidr import Address
from svc.values import dataclass, field, replace

POOLS: Final = {4: "ipv4pools", 6: "ipv6pools"}
FAMILIES: Final = "ipFamilies"
ADDRESSES: Final = "ipAddrs"
UNMANAGED: Final = "ipAddrsNoIpam"
FLOATING: Final = "floatingIPs"
MAC: Final = "hwAddr"
SOURCE_PREFIXES: Final = "allowedSourcePrefixes"

# The others are read on pods only.
OF_NAMESPACES: Final = frozenset({*POOLS.values(), FAMILIES, ADDRESSES, UNMANAGED, FLOATING})


@dataclass(frozen=True, slots=True)
class Features:
    """Annotations that the network configuration must enable (`feature_control`)."""

    ip_addrs_no_ipam: bool = False
    floating_ips: bool = False


@dataclass(frozen=True, slots=True)
class AnnotationSettings:
    """What annotations request; empty fields are not requested.

    `addresses` are those of `ipAddrs` or, if `unmanaged`, of `ipAddrsNoIpam`. `sources` maps the name of each effective
    annotation to its location and content. `warnings` lists what was corrected or ignored.
    """

    pools: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    addresses: tuple[Address, ...] = ()
    unmanaged: bool = False
    floating: tuple[Address, ...] = ()
    mac: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def of_another_interface(self) -> "AnnotationSettings":
        """Return a copy without the settings that apply only to the pod's first interface."""
        sources = {name: source for name, source in self.sources.items() if name not in (ADDRESSES, UNMANAGED)}
        return replace(self, addresses=(), unmanaged=False, floating=(), mac="", sources=sources)


NO_FEATURES: Final = Features()
NO_SETTINGS: Final = AnnotationSettings()
