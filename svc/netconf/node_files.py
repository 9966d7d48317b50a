"""Files of the node agent: the name under which it registered the node, and the MTU of its network.

A call that needs a file reads it each time, because the node agent may write it at any time. A read takes a few microseconds.
"""

import os
from typing import Final

from svc.model.errors import CallerError, Code, PeerError
from svc.model.shortage import shortage
from svc.names import Names
from svc.netconf import fields
from svc.netconf.netconf import NetConf

_NODE_NAME: Final = "nodename"
_MTU: Final = "mtu"
_LONGEST: Final = 1024  # bytes; longer content is neither a name nor a number
_SHOWN: Final = 60


def node_name(netconf: NetConf, names: Names, hostname: str, *, lenient: bool = False, ipam: bool = False) -> str:
    """Return the node's name: `nodename`, the file's, `hostname`, or the host's in lower case, as Kubernetes registers it.

    With `lenient`, for a DEL, an unusable file counts as missing. With `ipam`, for the IPAM plugin, the file is not required.
    Raise PeerError if a required file is unusable, CallerError if no source has a name.
    """
    if netconf.nodename:
        return netconf.nodename
    name = _name_in_file(netconf, names, lenient=lenient, ipam=ipam) or netconf.hostname or hostname.strip().lower()
    if not name:
        raise CallerError("the node has no name", details="nodename: set it, for the host name is empty")
    return name


def mtu(netconf: NetConf, names: Names) -> int:
    """Return the configured MTU, else that of the file, else 0 for the kernel's default. Raise PeerError."""
    if netconf.mtu:
        return netconf.mtu
    path = f"{names.state_dir}/{_MTU}"
    text = _content("MTU", path)
    if text is None:
        if netconf.require_mtu_file:
            raise _missing("MTU", path, "require_mtu_file: remove it, or set mtu")
        return 0
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    finding = ("is not a number", "") if number < 0 else fields.mtu(number, ipv6=netconf.ipam.assign_ipv6)
    if finding:
        raise PeerError(
            f"MTU file {path!r} holds {text[:_SHOWN]!r}, which {finding[0]}",
            details="see why the node agent writes that, or set mtu in the network configuration",
            code=Code.IO_FAILURE,
        )
    return number


def _name_in_file(netconf: NetConf, names: Names, *, lenient: bool, ipam: bool) -> str:
    path = netconf.nodename_file or f"{names.state_dir}/{_NODE_NAME}"
    try:
        name = _content("node name", path)
        if name and (finding := fields.node_name(name)):
            raise PeerError(
                f"node name file {path!r} holds {name[:_SHOWN]!r}, which {finding[0]}",
                details=f"{finding[1]}; or set nodename in the network configuration",
                code=Code.IO_FAILURE,
            )
    except PeerError:
        if not lenient:
            raise
        return ""
    # with an embedded store no other program knows the node by a name
    by_default = names.nodename_file_required and netconf.datastore.kind != "embedded"
    is_required = not netconf.nodename_file_optional and (netconf.nodename_file or by_default)
    if not name and not (lenient or ipam) and is_required:
        raise _missing("node name", path, "set nodename, or nodename_file_optional")
    return name or ""


def _content(what: str, path: str) -> str | None:
    """Return the stripped content, or None if the file does not exist. Raise PeerError if it is unreadable."""
    if not os.access(path, os.F_OK):  # a failed open takes ten times as long, mostly for the exception
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return os.read(fd, _LONGEST).decode(errors="replace").strip()
        finally:
            os.close(fd)
    except FileNotFoundError:  # removed since the check
        return None
    except OSError as failure:
        raise shortage(failure) or PeerError(
            f"{what} file {path!r} cannot be read: {failure.strerror}",
            details="make it a file that root may read, or remove it",
            code=Code.IO_FAILURE,
        ) from failure


def _missing(what: str, path: str, otherwise: str) -> PeerError:
    return PeerError(
        f"{what} file {path!r} is missing or empty",
        details=f"the node agent writes it: see whether it runs. Without it: {otherwise}",
        code=Code.IO_FAILURE,
    )
