"""Another program on the machine of the tests: it makes and deletes namespaces and links until SIGTERM ends it.

Its names look like those of the plugin, of the harness in other runs, and of container runtimes. The exit status is 1 if
something disappeared before this program deleted it.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

LIFETIME_ROUNDS = 4  # rounds for which a namespace and its links stay
ROUND_SECONDS = 0.02
_IPTABLES = "iptables -w -t nat"


def main() -> int:
    folder = Path(sys.argv[1])
    stop_requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
    folder.mkdir()
    permanent = PermanentObjects(folder)
    try:
        churn(stop_requested, folder / "ready")
    finally:
        lost = permanent.end()
    return lost


def churn(stop_requested: threading.Event, ready: Path) -> None:
    """Make a namespace, a pair and a bridge in each round, and delete the oldest ones. Raise RuntimeError if one is missing."""
    standing: deque[int] = deque()
    for number in itertools.count():
        standing.append(number)
        _ip(f"netns add {_namespace(number)}", f"link add svc{number:011} type veth peer name eth0 netns {_namespace(number)}")
        _ip(f"link add cali{number:011} type bridge")
        if stop_requested.wait(ROUND_SECONDS):
            break
        if len(standing) > LIFETIME_ROUNDS:
            _remove(standing.popleft())
            ready.touch()
    for each in standing:
        _remove(each)


def _namespace(number: int) -> str:
    """Return a name that the harness or a runtime could give, with the number of this process or of an ended one."""
    return (f"svc-node-{os.getpid()}-{number}", f"svc-sandbox-{2**22 + number}-0", f"cni-{number:08x}")[number % 3]


def _remove(number: int) -> None:
    _ip(f"link delete svc{number:011}", f"link delete cali{number:011}", f"netns delete {_namespace(number)}")


def _ip(*lines: str) -> None:
    _run("ip", "-batch", "-", text="\n".join(lines))


def _run(*command: str, text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {text}: {done.stderr}")


class PermanentObjects:
    """Objects that exist all the time: a mount, a file, a process, and an iptables chain in the host."""

    def __init__(self, folder: Path) -> None:
        self._mount, self._file = folder / "mount", Path("/run/netns/.neighbour")
        self._mount.mkdir()
        _run("mount", "-t", "tmpfs", "tmpfs", str(self._mount))
        self._file.touch()
        self._process = subprocess.Popen(["sleep", "1000000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._chains = shutil.which("iptables") is not None
        if self._chains:
            _run(*_IPTABLES.split(), "-N", "CNI-HOSTPORT-DNAT")

    def end(self) -> int:
        """Remove all objects. Return 1 if one is missing."""
        is_missing = self._process.poll() is not None or not self._mount.is_mount() or not self._file.exists()
        self._process.kill()
        self._process.wait()
        self._file.unlink(missing_ok=True)
        _run("umount", str(self._mount))
        if self._chains:
            _run(*_IPTABLES.split(), "-X", "CNI-HOSTPORT-DNAT")
        return int(is_missing)


if __name__ == "__main__":
    sys.exit(main())
