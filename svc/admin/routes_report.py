"""The report of svc-routes on this node, read from its socket, and what `svcctl status` says about it."""

import json
import socket
from pathlib import Path
from typing import Any, Final

from svc.model.errors import Code, PeerError

SOCKET: Final = "routes.sock"  # in the run directory
_SECONDS: Final = 10.0
_CHUNK: Final = 1 << 16

Json = dict[str, Any]


def summary(path: Path, seconds: float) -> Json | None:
    """Return the report without its networks; None if no instance runs. Raise PeerError if one does not answer in time."""
    try:
        found = read_report(path, seconds)
    except PeerError as failure:
        if isinstance(failure.__context__, FileNotFoundError | ConnectionRefusedError):
            return None
        raise
    return {name: value for name, value in found.items() if name != "networks"}


def read_report(path: Path, seconds: float = _SECONDS) -> Json:
    """Return the report. Raise PeerError if no instance serves it."""
    try:
        answer = _read(path, seconds)
    except OSError as failure:
        msg = f"svc-routes does not answer on {str(path)!r}: {failure.strerror or failure}"
        details = "see whether `svc-routes run` runs with this --run-dir, and run this as root"
        raise PeerError(msg, details=details, code=Code.IO_FAILURE) from None
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise PeerError(f"svc-routes refuses to answer on {str(path)!r}", details="see its log", code=Code.IO_FAILURE)
    found: Json = json.loads(body)
    return found


def _read(path: Path, seconds: float) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(seconds)
        client.connect(str(path))
        client.sendall(b"GET /routes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        parts = []
        while part := client.recv(_CHUNK):
            parts.append(part)
        return b"".join(parts)
