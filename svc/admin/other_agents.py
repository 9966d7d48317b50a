"""The interfaces of other agents in this network namespace, as the agents themselves report them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc.admin.agent_client import ask
from svc.cni.install_record import SOCKET_NAME
from svc.model.errors import SvcError

_SECONDS: Final = 1.0  # that each agent has to answer
_LISTENING: Final = 0x10000  # flag in /proc/net/unix, see proc(5)


def links_of_other_agents() -> dict[str, int]:
    """Return name and index of the host interfaces in the journals of the other agents. One that does not answer has none."""
    found: dict[str, int] = {}
    for socket in _sockets():
        with suppress(SvcError):
            for row in ask(socket.parent, socket, "attachments", seconds=_SECONDS)["attachments"]:
                found[row["host_interface"]] = row["host_index"]
    return found


def _sockets() -> Iterator[Path]:
    """Yield the sockets of other agents. An agent binds its socket as `.PID`, and renames it then."""
    with suppress(OSError):
        for line in Path("/proc/thread-self/net/unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if len(fields) < 8 or not int(fields[3], 16) & _LISTENING:
                continue
            bound = Path(fields[7])
            pid, socket = bound.name.removeprefix("."), bound.with_name(SOCKET_NAME)
            if bound.name.startswith(".") and pid.isdecimal() and int(pid) != os.getpid() and _is_of_root(socket):
                yield socket


def _is_of_root(path: Path) -> bool:
    try:
        return path.is_absolute() and path.stat().st_uid == 0
    except OSError:
        return False
