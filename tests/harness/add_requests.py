"""Network configurations for ADD requests that a test makes without the executable."""

from dataclasses import replace
from typing import Any

from svc.names import DEFAULT
from svc.netconf.netconf import NetConf, read

_NETCONF = read({"cniVersion": "1.1.0", "name": "net", "type": "svc", "ipam": {"type": "svc-ipam"}}, DEFAULT)


def netconf(versions: tuple[int, ...] = (4,), four: tuple[str, ...] = (), six: tuple[str, ...] = (), **fields: Any) -> NetConf:
    """Return a network configuration with these address families and these pools of each."""
    ipam = replace(_NETCONF.ipam, assign_ipv4=4 in versions, assign_ipv6=6 in versions, ipv4_pools=four, ipv6_pools=six)
    return replace(_NETCONF, **{"ipam": ipam, **fields})
