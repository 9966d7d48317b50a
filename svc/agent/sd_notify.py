"""sd_notify(3): report the agent's state to systemd, if systemd requests it."""

import os
import socket


def notify(state: str) -> None:
    """Send the state to NOTIFY_SOCKET, if that is set. A service manager that does not listen is not an error."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            return


def watchdog_seconds() -> float:
    """Return the time within which systemd expects WATCHDOG=1, or 0 if it does not watch this process."""
    pid, microseconds = os.environ.get("WATCHDOG_PID", ""), os.environ.get("WATCHDOG_USEC", "")
    if pid not in ("", str(os.getpid())) or not microseconds.isdecimal():
        return 0.0
    return int(microseconds) / 1e6
