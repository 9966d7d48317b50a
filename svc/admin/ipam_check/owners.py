"""What an allocation says of its owner: which kind it is, and which container and network its handle names."""

from collections.abc import Iterable, Mapping
from typing import Final

POD, CONTAINER, TUNNEL, SERVICE, VM = "pod", "container", "tunnel", "service", "virtual machine"
_TUNNEL: Final = "TunnelAddress"  # at the end of the attribute `type` of a tunnel's address


def kind_of(owner: Mapping[str, str]) -> str:
    """Return the kind of the owner with these attributes. CONTAINER stands for any that is not a known one."""
    if owner.get("type", "").endswith(_TUNNEL):
        return TUNNEL
    if "service" in owner:
        return SERVICE
    if "vmi-name" in owner:
        return VM
    return POD if owner.get("pod") and owner.get("namespace") else CONTAINER


def is_of_one(handle: str, containers: Iterable[tuple[str, ...]]) -> bool:
    """Return whether the handle is that of one of the containers."""
    return any(f".{handle}".endswith(f".{container}") for present in containers for container in present)


def network_of(handle: str) -> str:
    """Return the start of a handle up to its container, with the dot: the network. Container IDs have no dots."""
    return handle[: handle.rfind(".") + 1]
