"""What svc-routes has written about this node to the datastore: it changes or releases nothing of another program there.

A file of the state directory keeps it, because after a boot neither the devices nor the addresses of before are there.
"""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from svc._core.cidr import Address
from svc.atomic_file import File, remove, write

_NAME: Final = "node.routes"

log = logging.getLogger("svc.routes")


class OwnMarks:
    """The kinds of the tunnels that have their address by svc-routes, and the registered addresses. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._lock = threading.Lock()
        self.tunnels: frozenset[str] = frozenset()
        self.registered: Mapping[int, Address] = {}
        self._read()

    def add_tunnel(self, kind: str) -> None:
        """Note that a tunnel is an own one. Raise OSError."""
        if kind not in self.tunnels:
            self._write(self.tunnels | {kind}, self.registered)

    def remove_tunnel(self, kind: str) -> None:
        """Note that a tunnel has no address any more. Raise OSError."""
        if kind in self.tunnels:
            self._write(self.tunnels - {kind}, self.registered)

    def add_registered(self, addresses: Mapping[int, Address]) -> None:
        """Note addresses of this node that are about to be written to its Node. Raise OSError."""
        if not addresses.items() <= self.registered.items():
            self._write(self.tunnels, {**self.registered, **addresses})

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text())
            self.tunnels = frozenset(map(str, found["tunnels"]))
            self.registered = {address.version: address for address in map(Address, found["addresses"])}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as failure:
            log.warning("%s is left out, so that the tunnels of before keep their addresses: %s", self._path, failure)

    def _write(self, tunnels: frozenset[str], registered: Mapping[int, Address]) -> None:
        document = {"tunnels": sorted(tunnels), "addresses": sorted(map(str, registered.values()))}
        with self._lock:
            write(File(self._path, f"{json.dumps(document)}\n".encode(), 0o644))
            self.tunnels, self.registered = tunnels, registered


def remove_marks(directory: Path) -> None:
    """Remove the file. Raise OSError."""
    if (directory / _NAME).exists():
        remove(directory / _NAME)
