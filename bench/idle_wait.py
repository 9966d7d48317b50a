"""Wait until the machine is idle, and report when it was not.

A namespace that is being torn down holds the kernel's RTNL lock and doubles every figure. Other programs' work is worse, as
it does not hit both sides alike: a peer that burns more processor time loses more, and ratios look better than they are.
"""

import time
from contextlib import suppress
from pathlib import Path

QUIET_SECONDS = 0.15  # without a teardown: the kernel takes the namespaces of a deletion in several goes
TIMEOUT_SECONDS = 120.0
POLL = 0.01
LOOK_SECONDS = 1.0
BUSY = 0.1  # of all processors: more than that makes figures doubtful


def wait_until_quiet() -> bool:
    """Returns when no namespace is being torn down; False when that did not happen in time."""
    deadline, quiet_since = time.monotonic() + TIMEOUT_SECONDS, time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        time.sleep(POLL)
        if _tears_down():
            quiet_since = time.monotonic()
        if time.monotonic() > deadline:
            return False
    return True


def wait_until_idle(patience: float) -> float:
    """Waits until other programs leave the processors alone, and returns the share that they use at the end."""
    deadline = time.monotonic() + patience
    while (share := busy_share()) > BUSY and time.monotonic() < deadline:
        continue
    return share


def busy_share() -> float:
    """The share of all processors in use, while we only look."""
    busy, total = _jiffies()
    time.sleep(LOOK_SECONDS)
    busy_then, total_then = _jiffies()
    return (busy_then - busy) / max(1, total_then - total)


def _jiffies() -> tuple[int, int]:
    """Busy and all, since the start. /proc/stat: user nice system idle iowait irq softirq steal; guest is part of user."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


def _tears_down() -> bool:
    """A worker that is busy in the kernel's netns queue calls itself kworker/u8:6+netns, an idle one -netns."""
    return any(_name(process).endswith("+netns") for process in Path("/proc").glob("[0-9]*/comm"))


def _name(comm: Path) -> str:
    with suppress(OSError):
        return comm.read_text().strip()
    return ""
