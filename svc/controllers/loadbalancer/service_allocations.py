"""The addresses of services that the blocks of the datastore record, by service."""

import threading
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from svc._core.cidr import Address
from svc.controllers.table import StoreTable
from svc.datastore.api import Entry
from svc.ipam.load_balancer import Served, served_in
from svc.model.ipam import Block


class ServiceAllocations:
    """An index of the table of blocks, for any thread. As old as the table, so a hint."""

    def __init__(self, blocks: StoreTable[Entry[Block]]) -> None:
        self._blocks = blocks
        self._lock = threading.Lock()
        self._in_block: dict[Any, tuple[Served, ...]] = {}
        self._blocks_of: defaultdict[str, set[Any]] = defaultdict(set)

    def refresh(self, keys: Collection[Any]) -> set[str]:
        """Read these blocks again. Return the services that had or have addresses in them."""
        changed: set[str] = set()
        for key in keys:
            entry = self._blocks.get(key)
            now = () if entry is None else tuple(served_in(entry.value))
            with self._lock:
                changed |= self._replace(key, now)
        return changed

    def services(self) -> set[str]:
        """Return all services that have addresses."""
        with self._lock:
            return set(self._blocks_of)

    def addresses(self) -> set[Address]:
        """Return the addresses of all services."""
        with self._lock:
            return {served.address for found in self._in_block.values() for served in found}

    def of(self, service: str) -> dict[str, set[Address]]:
        """Return the addresses of a service by handle."""
        found: defaultdict[str, set[Address]] = defaultdict(set)
        with self._lock:
            for key in self._blocks_of.get(service, ()):
                for served in self._in_block[key]:
                    if served.service == service:
                        found[served.handle].add(served.address)
        return dict(found)

    def service_with(self, address: Address) -> str:
        """Return the service that has an address; empty if none is known."""
        with self._lock:
            found = (served.service for block in self._in_block.values() for served in block if served.address == address)
            return next(found, "")

    def _replace(self, key: Any, now: tuple[Served, ...]) -> set[str]:
        before = self._in_block.pop(key, ())
        if before == now == ():
            return set()
        for service in {served.service for served in before}:
            self._blocks_of[service].discard(key)
            if not self._blocks_of[service]:
                del self._blocks_of[service]
        if now:
            self._in_block[key] = now
        for served in now:
            self._blocks_of[served.service].add(key)
        return {served.service for served in {*before, *now}}
