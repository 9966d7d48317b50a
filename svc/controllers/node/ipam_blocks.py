"""Blocks that nothing writes any more: addresses whose cooldown is over, and blocks without addresses.

The next ADD or DEL in a block frees what has cooled, but an idle block has none. A node keeps its last block, so that its next
pod need not wait for a claim. Blocks of virtual hosts stay, and those of nodes that are gone belong to another part.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from svc._core.cidr import Cidr
from svc.admin.ipam_check.findings import CONFIRM_SECONDS
from svc.controllers.controller import Controller, Shared
from svc.controllers.nodes import read_kube_name, read_kube_node
from svc.controllers.observations import Observations
from svc.controllers.settings import NODE
from svc.datastore.api import Conflict, Entry, NotFound, UndecodableEntry
from svc.ipam import claims
from svc.ipam.blocks import Cooldown, has_cooldown, is_empty
from svc.ipam.claims import BlockInUse, ClaimConflict
from svc.ipam.settings import cooldown_of, read_settings
from svc.model.ipam import PENDING_DELETION, Block
from svc.model.keys import NODE as OF_NODE
from svc.model.keys import AffinityKey, BlockKey, Host
from svc.values import dataclass

_MIGRATION = "node-network-during-migration"  # the label of a node that moves to this network from another one
_NO_BLOCK = -1  # the sequence number of no block

log = logging.getLogger("svc.controllers")


@dataclass(frozen=True, slots=True)
class Task:
    """What to do with a block: release it from its node if it still has this sequence number; else free what has cooled.

    Without a block, read how long the cooldown is, and find the blocks.
    """

    cidr: Cidr | None = None
    node: str = ""
    sequence: int = 0


class IpamBlocks(Controller[Task]):
    """Frees addresses whose cooldown is over, and releases empty blocks after the grace period."""

    name = NODE

    def __init__(self, shared: Shared, clock: Callable[[], float] = time.monotonic) -> None:
        tables = shared.tables
        self._blocks, self._affinities = tables.blocks, tables.affinities
        self._empty: Observations[tuple[str, Cidr], int] = Observations(clock)
        self._released: Observations[tuple[str, Cidr], str] = Observations(clock)
        super().__init__(shared, (self._blocks, *self._affinities))

    @property
    def round_seconds(self) -> float:
        """Shorter while a block has been empty for some of the grace period."""
        return min(super().round_seconds, self._empty.wait(self._grace) or super().round_seconds)

    def round_items(self) -> Iterable[Task]:
        blocks = [entry.value for entry in self._blocks.snapshot().values()]
        cooling = [Task()] if any(map(has_cooldown, blocks)) else []
        return [*cooling, *self._idle(blocks), *self._half_released({block.cidr for block in blocks})]

    def settle(self, item: Task) -> None:
        with suppress(Conflict, NotFound, BlockInUse, ClaimConflict):  # it was changed, and the next round looks again
            if item.node:
                self._release(item, item.node)
            elif item.cidr is not None:
                if count := claims.free_cooled(self.shared.store, item.cidr, self._read_cooldown()):
                    log.info(
                        "controller %s: block %s has %d more free addresses after their cooldown", self.name, item.cidr, count
                    )
            else:
                self.add(self._cooled(self._read_cooldown()))

    def shown(self, item: Task) -> str:
        return "the cooldown" if item.cidr is None else f"block {item.cidr}"

    # cooldown

    def _read_cooldown(self) -> Cooldown:
        return cooldown_of(read_settings(self.shared.store))

    def _cooled(self, cooldown: Cooldown) -> Iterator[Task]:
        """Yield the blocks with addresses whose cooldown is over, as far as the table shows."""
        for entry in self._blocks.snapshot().values():
            times = (attribute.released_at for attribute in entry.value.attributes or ())
            if any(cooldown.is_over(since) for since in times if since):
                yield Task(entry.value.cidr)

    # empty blocks

    @property
    def _grace(self) -> float:
        return self.shared.live.now.leak_grace_seconds

    def _idle(self, blocks: Iterable[Block]) -> list[Task]:
        """Return the blocks that have been empty for the grace period, of nodes with further blocks."""
        owned = [(host.name, block) for block in blocks if (host := _node_of(block))]
        by_node: dict[str, int] = {}
        for node, _ in owned:
            by_node[node] = by_node.get(node, 0) + 1
        empty = {(node, block.cidr): block.sequence for node, block in owned if by_node[node] > 1 and is_empty(block)}
        found = self._empty.look(empty, self._grace)
        return [Task(cidr, node, empty[node, cidr]) for node, cidr in found] if self._grace else []

    def _half_released(self, present: set[Cidr]) -> list[Task]:
        """Return the affinities that a killed process has left when it released a block: the block does not exist any more."""
        left = {
            (key.host, key.cidr): entry.revision
            for key, entry in self._affinities[0].snapshot().items()
            if isinstance(key, AffinityKey) and entry.value.state == PENDING_DELETION and key.cidr not in present
        }
        found = self._released.look(left, max(CONFIRM_SECONDS, self._grace))
        return [Task(cidr, node, _NO_BLOCK) for node, cidr in found] if self._grace else []

    def _release(self, task: Task, node: str) -> None:
        """Release an empty block. Raise BlockInUse, ClaimConflict if it is not as it was seen."""
        assert task.cidr is not None
        if not self._grace or not self._may_lose_blocks(node):
            return
        if task.sequence != _NO_BLOCK and not self._has_another(node, task.cidr):
            return
        key = AffinityKey(node, task.cidr)
        claims.release_affinity(self.shared.store, key, self._read_cooldown(), only_empty=True, sequence=task.sequence)
        log.info("controller %s: block %s of node %s is released: it was empty", self.name, task.cidr, node)

    def _may_lose_blocks(self, node: str) -> bool:
        """Return whether Kubernetes has the node, and it does not move to this network from another one."""
        names = self.shared.names
        known = read_kube_name(names, self.shared.store, node)
        found = read_kube_node(self.shared.client, known) if known else None
        if found is None:
            return False
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(f"{names.label_prefix}/{_MIGRATION}", names.plugin) == names.plugin)

    def _has_another(self, node: str, cidr: Cidr) -> bool:
        """Return whether the node has another block now."""
        for entry in self._blocks.snapshot().values():
            if entry.value.cidr != cidr and _is_of(entry, node):
                with suppress(UndecodableEntry):
                    present = self.shared.store.find(BlockKey(entry.value.cidr))
                    if present is not None and _is_of(present, node):
                        return True
        return False


def _node_of(block: Block) -> Host | None:
    """Return the node that has the block; None if it is unclaimed, or of a virtual host."""
    host = Host.of(block.affinity)
    return host if host is not None and host.kind == OF_NODE else None


def _is_of(entry: Entry[Block], node: str) -> bool:
    return entry.value.affinity == Host(node).affinity
