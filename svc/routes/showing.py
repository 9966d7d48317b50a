"""The report of the instance that runs, read from its socket."""

import json
import socket
from pathlib import Path
from typing import Any, Final

from svc.model.errors import Code, PeerError

_SECONDS: Final = 10.0
_CHUNK: Final = 1 << 16


def read_report(path: Path) -> dict[str, Any]:
    """Return the report. Raise PeerError if no instance serves it."""
    try:
        answer = _read(path)
    except OSError as failure:
        msg = f"svc-routes does not answer on {str(path)!r}: {failure.strerror or failure}"
        details = "see whether `svc-routes run` runs with this --run-dir, and run this as root"
        raise PeerError(msg, details=details, code=Code.IO_FAILURE) from None
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise PeerError(f"svc-routes refuses to answer on {str(path)!r}", details="see its log", code=Code.IO_FAILURE)
    found: dict[str, Any] = json.loads(body)
    return found


def _read(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_SECONDS)
        client.connect(str(path))
        client.sendall(b"GET /routes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        parts = []
        while part := client.recv(_CHUNK):
            parts.append(part)
        return b"".join(parts)
