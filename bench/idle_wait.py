"""Wait until the machine is idle, and report if it was not.

A namespace teardown holds the kernel's RTNL lock and doubles every result. Work of other programs is worse, because it does not
affect both sides equally. A peer that uses more processor time loses more, so ratios look better than they are.
"""

import time
from contextlib import suppress
from pathlib import Path

QUIET_SECONDS = 0.15  # without a teardown, because the kernel deletes several namespaces in several steps
TIMEOUT_SECONDS = 120.0
POLL = 0.01
LOOK_SECONDS = 1.0
BUSY = 0.1  # of all processors; a higher share makes results doubtful


def wait_until_quiet() -> bool:
    """Wait until no namespace is being torn down. Return False on timeout."""
    deadline, quiet_since = time.monotonic() + TIMEOUT_SECONDS, time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        time.sleep(POLL)
        if _tears_down():
            quiet_since = time.monotonic()
        if time.monotonic() > deadline:
            return False
    return True


def wait_until_idle(timeout: float) -> float:
    """Wait until other programs leave the processors idle. Return the share that they use at the end."""
    deadline = time.monotonic() + timeout
    while (share := busy_share()) > BUSY and time.monotonic() < deadline:
        continue
    return share


def busy_share() -> float:
    """Return the share of all processors in use while this process only waits."""
    busy, total = _jiffies()
    time.sleep(LOOK_SECONDS)
    busy_then, total_then = _jiffies()
    return (busy_then - busy) / max(1, total_then - total)


def _jiffies() -> tuple[int, int]:
    """Return busy and total time since boot.

    /proc/stat has user, nice, system, idle, iowait, irq, softirq and steal; guest is part of user.
    """
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


def _tears_down() -> bool:
    """Return whether it is a worker that runs the kernel's netns queue: kworker/u8:6+netns. An idle one is named -netns."""
    return any(_name(process).endswith("+netns") for process in Path("/proc").glob("[0-9]*/comm"))


def _name(comm: Path) -> str:
    with suppress(OSError):
        return comm.read_text().strip()
    return ""
