"""Chains of the older iptables programs, which nftables does not list: those for NAT, and those that drop forwarded packets.

They are in tables of their own. The kernel names those that exist, and gives their entries to any socket of the address family.
Nothing is asked of a table that does not exist, because the kernel would make it.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from svc.routes.nft import Chain
from svc.values import dataclass

_NAT, _FILTER, _FORWARD = "nat", "filter", "FORWARD"
_INFO, _ENTRIES = 64, 65  # IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; the same numbers for IPv6
_INFO_FORM: Final = struct.Struct(
    "=32s4x20x8xI8x4xI"
)  # struct ipt_getinfo: name, place of FORWARD's policy, size of all entries
_HEAD_FORM: Final = struct.Struct("=32sI4x")  # struct ipt_get_entries, before the entries
_OFFSETS_FORM: Final = struct.Struct("=HH")  # of an entry: where its target is, and where the next entry begins
_TARGET_FORM: Final = struct.Struct("=2x30s30s")  # struct xt_error_target: its name, and that of the chain
_POLICY_FORM: Final = struct.Struct("=32xi")  # struct xt_standard_target: the verdict
_DROP: Final = -1
_CHAIN_TARGET: Final = b"ERROR"  # of the entry that begins a chain, and of the last one
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class _Family:
    """An IP version. `offsets` is where an entry has its offsets: behind the addresses and interfaces that it matches."""

    name: str
    tables: Path
    number: int
    level: int
    offsets: int


_NET: Final = Path("/proc/thread-self/net")
_FAMILIES: Final = (
    _Family("ip", _NET / "ip_tables_names", socket.AF_INET, socket.IPPROTO_IP, 88),
    _Family("ip6", _NET / "ip6_tables_names", socket.AF_INET6, socket.IPPROTO_IPV6, 140),
)


def chains() -> list[Chain]:
    """Return the NAT chains of the namespace that users have made. None if the kernel does not give them."""
    return [Chain(family.name, _NAT, name) for family in _FAMILIES for name in _names(family, _read(family, _NAT)[1])]


def dropping() -> list[Chain]:
    """Return the chains that drop forwarded packets by their policy."""
    found = [family for family in _FAMILIES if _drops(family, *_read(family, _FILTER))]
    return [Chain(family.name, _FILTER, _FORWARD, _FILTER, hook="forward", policy="drop") for family in found]


def _names(family: _Family, data: bytes) -> Iterator[str]:
    start = 0
    while start + family.offsets + _OFFSETS_FORM.size <= len(data):
        target, following = _OFFSETS_FORM.unpack_from(data, start + family.offsets)
        if not following:
            return
        if start + target + _TARGET_FORM.size <= len(data):
            kind, chain = (_text(each) for each in _TARGET_FORM.unpack_from(data, start + target))
            if kind == _CHAIN_TARGET and chain != _CHAIN_TARGET:
                yield chain.decode(errors="replace")
        start += following


def _drops(family: _Family, policy: int, data: bytes) -> bool:
    """Return whether the entry with the policy of FORWARD has the verdict to drop."""
    if policy + family.offsets + _OFFSETS_FORM.size > len(data):
        return False
    target, _ = _OFFSETS_FORM.unpack_from(data, policy + family.offsets)
    at = policy + target
    return at + _POLICY_FORM.size <= len(data) and bool(_POLICY_FORM.unpack_from(data, at)[0] == _DROP)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _exists(family: _Family, table: str) -> bool:
    try:
        return table in family.tables.read_text().split()
    except OSError:  # the kernel has not loaded these tables
        return False


def _read(family: _Family, table: str) -> tuple[int, bytes]:
    """Return the place of the policy of FORWARD, and all entries of a table; none if it does not exist or cannot be read."""
    if not _exists(family, table):
        return 0, b""
    name = table.encode()
    with socket.socket(family.number, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        for _ in range(_ATTEMPTS):
            try:
                info = _ask(asking, family.level, _INFO, name.ljust(_INFO_FORM.size, b"\0"))
                _, policy, size = _INFO_FORM.unpack(info)
                request = _HEAD_FORM.pack(name, size) + bytes(size)
                return policy, _ask(asking, family.level, _ENTRIES, request)[_HEAD_FORM.size :]
            except OSError as failure:
                if failure.errno != errno.EAGAIN:  # the table has changed in between
                    break
    return 0, b""


def _ask(asking: socket.socket, level: int, option: int, request: bytes) -> bytes:
    """Return the answer of getsockopt, to which the module `socket` gives no request. Raise OSError."""
    answer = ctypes.create_string_buffer(request, len(request))
    size = ctypes.c_uint32(len(request))
    if ctypes.CDLL(None, use_errno=True).getsockopt(asking.fileno(), level, option, answer, ctypes.byref(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer.raw
