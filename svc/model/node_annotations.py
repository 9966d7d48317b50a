"""Fields of a Node that are annotations of the node in the Kubernetes API."""

from typing import Final

BGP: Final = (
    ("IPv4Address", "bgp", "ipv4Address"),
    ("IPv6Address", "bgp", "ipv6Address"),
    ("ASNumber", "bgp", "asNumber"),
    ("RouteReflectorClusterID", "bgp", "routeReflectorClusterID"),
)
TUNNELS: Final = (
    ("IPv4IPIPTunnelAddr", "bgp", "ipv4IPIPTunnelAddr"),
    ("IPv4VXLANTunnelAddr", "", "ipv4VXLANTunnelAddr"),
    ("VXLANTunnelMACAddr", "", "vxlanTunnelMACAddr"),
    ("IPv6VXLANTunnelAddr", "", "ipv6VXLANTunnelAddr"),
    ("VXLANTunnelMACAddrV6", "", "vxlanTunnelMACAddrV6"),
    ("IPv4WireguardInterfaceAddr", "wireguard", "interfaceIPv4Address"),
    ("IPv6WireguardInterfaceAddr", "wireguard", "interfaceIPv6Address"),
)
SPEC: Final = (*BGP, *TUNNELS)
"""Annotation, section and field of the specification; a section that is empty is the specification itself."""
