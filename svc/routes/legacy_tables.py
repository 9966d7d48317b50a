"""NAT chains of the older iptables programs, which nftables does not list.

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

_TABLE: Final = "nat"
_INFO, _ENTRIES = 64, 65  # IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; the same numbers for IPv6
_INFO_FORM: Final = struct.Struct("=32s4x20x20x4xI")  # struct ipt_getinfo: the name, and the size of all entries at the end
_HEAD_FORM: Final = struct.Struct("=32sI4x")  # struct ipt_get_entries, before the entries
_OFFSETS_FORM: Final = struct.Struct("=HH")  # of an entry: where its target is, and where the next entry begins
_TARGET_FORM: Final = struct.Struct("=2x30s30s")  # struct xt_error_target: its name, and that of the chain
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
    return [Chain(family.name, _TABLE, name) for family in _FAMILIES if _exists(family) for name in _names(family)]


def _exists(family: _Family) -> bool:
    try:
        return _TABLE in family.tables.read_text().split()
    except OSError:  # the kernel has not loaded these tables
        return False


def _names(family: _Family) -> Iterator[str]:
    data, start = _entries(family), 0
    while start + family.offsets + _OFFSETS_FORM.size <= len(data):
        target, following = _OFFSETS_FORM.unpack_from(data, start + family.offsets)
        if not following:
            return
        if start + target + _TARGET_FORM.size <= len(data):
            kind, chain = (_text(each) for each in _TARGET_FORM.unpack_from(data, start + target))
            if kind == _CHAIN_TARGET and chain != _CHAIN_TARGET:
                yield chain.decode(errors="replace")
        start += following


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _entries(family: _Family) -> bytes:
    """Return the entries of the table; empty if they cannot be read."""
    name = _TABLE.encode()
    with socket.socket(family.number, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        for _ in range(_ATTEMPTS):
            try:
                (size,) = _INFO_FORM.unpack(_ask(asking, family.level, _INFO, name.ljust(_INFO_FORM.size, b"\0")))[1:]
                request = _HEAD_FORM.pack(name, size) + bytes(size)
                return _ask(asking, family.level, _ENTRIES, request)[_HEAD_FORM.size :]
            except OSError as failure:
                if failure.errno != errno.EAGAIN:  # the table has changed in between
                    return b""
    return b""


def _ask(asking: socket.socket, level: int, option: int, request: bytes) -> bytes:
    """Return the answer of getsockopt, to which the module `socket` gives no request. Raise OSError."""
    answer = ctypes.create_string_buffer(request, len(request))
    size = ctypes.c_uint32(len(request))
    if ctypes.CDLL(None, use_errno=True).getsockopt(asking.fileno(), level, option, answer, ctypes.byref(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer.raw
