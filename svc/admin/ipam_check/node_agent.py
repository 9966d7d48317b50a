"""The agent of a state directory, as far as it is needed to look at the same node."""

import os
from contextlib import closing, suppress
from pathlib import Path

from svc.cni.locks import AGENT, DIRECTORY, STATE, LockFile
from svc.model.errors import CallerError


def require_same_netns(state_dir: Path) -> None:
    """Raise CallerError if the agent runs in another network namespace, because its interfaces are not visible here then."""
    with suppress(OSError):
        pid = _agent_pid(state_dir)
        own, other = (os.stat(f"/proc/{name}/ns/net") for name in ("thread-self", pid))
        if pid and not os.path.samestat(own, other):
            msg = f"the agent of {str(state_dir)!r} (process {pid}) runs in another network namespace"
            raise CallerError(msg, details=f"run this there: nsenter -t {pid} -n")


def _agent_pid(state_dir: Path) -> int:
    """Return the process ID of the agent; 0 if none runs."""
    file = state_dir / DIRECTORY / STATE
    if not file.exists():
        return 0
    with closing(LockFile(file, reads=True)) as lock:
        holder = lock.holder()
    return holder.pid if holder.purpose == AGENT else 0
