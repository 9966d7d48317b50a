"""What svc-routes has written about this node to the datastore: it changes or releases nothing of another program there.

A file of the state directory keeps it, because after a boot neither the devices nor the addresses of before are there.
"""

import json
import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

from svc._core.cidr import Address
from svc.atomic_file import File, remove, write

_NAME: Final = "node.routes"

log = logging.getLogger("svc.routes")


class OwnMarks:
    """The kinds of the tunnels that have their address by svc-routes, and all addresses that it has registered. Thread-safe.

    `adopted` are the kinds whose address another program had assigned before svc-routes needed one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._lock = threading.Lock()
        self.tunnels: frozenset[str] = frozenset()
        self.adopted: frozenset[str] = frozenset()
        self.registered: frozenset[Address] = frozenset()
        self._read()

    def add_tunnel(self, kind: str) -> None:
        """Note that a tunnel is an own one. Raise OSError."""
        if kind not in self.tunnels:
            self._write(tunnels=self.tunnels | {kind})

    def add_adopted(self, kind: str) -> None:
        """Note that another program has assigned the address of a tunnel. Raise OSError."""
        if kind not in self.adopted:
            self._write(adopted=self.adopted | {kind})

    def remove_tunnel(self, kind: str) -> None:
        """Note that a tunnel has no address any more. Raise OSError."""
        if kind in self.tunnels:
            self._write(tunnels=self.tunnels - {kind})

    def add_registered(self, addresses: Collection[Address]) -> None:
        """Note addresses of this node that are about to be written to its Node. Raise OSError.

        Those of before stay noted: the write may fail, and the Node still have them."""
        if not self.registered.issuperset(addresses):
            self._write(registered=self.registered.union(addresses))

    def forget_registered(self) -> None:
        """Note that the Node has no address of svc-routes any more. Raise OSError."""
        if self.registered:
            self._write(registered=frozenset())

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text())
            tunnels, adopted = (frozenset(map(str, given)) for given in (found["tunnels"], found.get("adopted", ())))
            registered = frozenset(map(Address, found["addresses"]))
            self.tunnels, self.adopted, self.registered = tunnels, adopted, registered
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as failure:
            log.warning("%s is left out, so that the tunnels of before keep their addresses: %s", self._path, failure)

    def _write(
        self,
        *,
        tunnels: frozenset[str] | None = None,
        adopted: frozenset[str] | None = None,
        registered: frozenset[Address] | None = None,
    ) -> None:
        """Write what is given, and the rest as it is."""
        with self._lock:
            tunnels = self.tunnels if tunnels is None else tunnels
            adopted = self.adopted if adopted is None else adopted
            registered = self.registered if registered is None else registered
            document = {"tunnels": sorted(tunnels), "adopted": sorted(adopted), "addresses": sorted(map(str, registered))}
            write(File(self._path, f"{json.dumps(document)}\n".encode(), 0o644))
            self.tunnels, self.adopted, self.registered = tunnels, adopted, registered


def remove_marks(directory: Path) -> None:
    """Remove the file. Raise OSError."""
    if (directory / _NAME).exists():
        remove(directory / _NAME)
