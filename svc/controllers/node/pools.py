"""The condition and the finalizer of pools, where pools are objects of the plain API group.

Users delete such pools there, and no program of svc is asked. So the finalizer keeps a pool until its blocks are gone. Where
another API, or svcctl, is in front of the pools, that one checks them, and this part does nothing.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

from svc.admin.pool_conditions import OK, Verdict, is_terminating, judge, with_condition, with_finalizer
from svc.admin.pools import cidr_of, has_blocks, remove_blocks
from svc.admin.resources import POOL
from svc.controllers.controller import Controller, Shared
from svc.controllers.settings import NODE
from svc.datastore.api import Entry, Update
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource

_ALL = ""  # the item of a full round

log = logging.getLogger("svc.controllers")


class Pools(Controller[str]):
    """Maintains pools. The items are their names."""

    name = NODE

    def __init__(self, shared: Shared) -> None:
        self._pools, self._blocks = shared.tables.pools, shared.tables.blocks
        self._maintains = False  # whether pools are in the plain group, as far as is known
        super().__init__(shared, (self._pools, self._blocks))
        self._pools.on_change(self._compare)
        self._blocks.on_change(self._look_for_empty)

    def round_items(self) -> Iterable[str]:
        return [_ALL]

    def settle(self, item: str) -> None:
        """Read all pools, and write what differs of one."""
        if item == _ALL:
            self._maintains = self.shared.store.has_plain_objects
            self._compare(())
            return
        pools = {entry.value.name: entry for entry in self.shared.store.list(ResourceQuery(POOL))}
        if item in pools:
            self._settle(pools[item], judge(entry.value for entry in pools.values()).get(item))

    def shown(self, item: str) -> str:
        return f"IP pool {item}" if item else "IP pools"

    def _compare(self, _: Collection[object]) -> None:
        """Add the pools that differ. A change of one may change the condition of another."""
        if self._maintains and self.is_ready:
            present = self._present()
            verdicts = judge(present.values())
            self.add([name for name, pool in present.items() if self._differs(pool, verdicts.get(name))])

    def _look_for_empty(self, keys: Collection[object]) -> None:
        """Add the pools that wait for the deletion of their last block."""
        if not (self._maintains and self.is_ready) or all(self._blocks.get(key) for key in keys):
            return
        waiting = {name: cidr for name, pool in self._present().items() if self._waits(pool) and (cidr := cidr_of(pool))}
        if waiting:
            left = [entry.value.cidr for entry in self._blocks.snapshot().values()]
            self.add([name for name, cidr in waiting.items() if not any(block.overlaps(cidr) for block in left)])

    def _present(self) -> Mapping[str, Resource]:
        return {entry.value.name: entry.value for entry in self._pools.snapshot().values()}

    def _waits(self, pool: Resource) -> bool:
        return is_terminating(pool) and self.shared.names.finalizer in (pool.metadata.get("finalizers") or ())

    def _differs(self, pool: Resource, verdict: Verdict | None) -> bool:
        return self._waits(pool) or self._wanted(pool, verdict) is not pool

    def _wanted(self, pool: Resource, verdict: Verdict | None) -> Resource:
        """Return the pool with its condition, and with the finalizer if addresses may be assigned from it."""
        if verdict is None:
            return pool
        wanted = with_condition(pool, verdict)
        return with_finalizer(wanted, self.shared.names.finalizer, wanted=True) if verdict.reason == OK else wanted

    def _settle(self, entry: Entry[Resource], verdict: Verdict | None) -> None:
        wanted = self._wanted(entry.value, verdict)
        if wanted is not entry.value:
            entry = self._write(entry, wanted)
            log.info("controller %s: IP pool %s is %s", self.name, wanted.name, verdict.reason if verdict else "")
        if self._waits(entry.value) and self._is_empty(entry.value, verdict):
            self._write(entry, with_finalizer(entry.value, self.shared.names.finalizer, wanted=False))
            log.info("controller %s: IP pool %s is deleted: no block of it is left", self.name, wanted.name)

    def _is_empty(self, pool: Resource, verdict: Verdict | None) -> bool:
        """Release the blocks of a pool. Return whether none is left: one with addresses stays until these are released."""
        cidr = cidr_of(pool)
        if cidr is None or (verdict is not None and verdict.rival):  # the blocks are those of another pool
            return True
        remove_blocks(self.shared.store, cidr)
        return not has_blocks(self.shared.store, cidr)

    def _write(self, entry: Entry[Resource], wanted: Resource) -> Entry[Resource]:
        (written,) = self.shared.store.write([Update(ResourceKey(POOL, wanted.name), wanted, entry.revision)], durable=True)
        assert written is not None
        return written
