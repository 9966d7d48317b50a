"""Whether the kernel forwards packets: its sysctls for it are off by default."""

from pathlib import Path
from typing import Final

from svc.routes.wanted import Wanted

_FORWARDING: Final = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}


def forwarding_problems(wanted: Wanted) -> list[str]:
    """Return a sentence for each IP version of the routes whose packets are not forwarded."""
    versions = sorted({network.version for network in wanted.routes})
    return [
        f"the kernel forwards no IPv{version} packets: set the sysctl {_FORWARDING[version].replace('/', '.')} to 1"
        for version in versions
        if _sysctl(_FORWARDING[version]) == "0"
    ]


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""
