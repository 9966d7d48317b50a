"""Use of the pools by this node, for metrics. Imported only if metrics are served.

The blocks of the node come from the cache of address management, which each assignment and release updates. A job reads the
affinities and blocks once in PERIOD_SECONDS, because the cache has only blocks that were used since the start of the agent. It
does so only if the metrics were read since, and the datastore served its last request.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from svc import deadline
from svc._core.cidr import Cidr
from svc.agent.lanes import Lane
from svc.agent.queue import Job
from svc.attach.sessions import DatastoreSession, SessionPool
from svc.ipam import blocks
from svc.ipam.pools import PoolSet, read_pools, read_reserved
from svc.metrics import Sample
from svc.model.errors import SvcError
from svc.model.ipam import Block
from svc.values import dataclass

PERIOD_SECONDS: Final = 60.0  # between two jobs for one session
LOOK_SECONDS: Final = 2.0  # between two searches for new sessions
_JOB_SECONDS: Final = 5.0
_STATES: Final = ("allocated", "cooldown", "free")

log = logging.getLogger("svc.agent")


@dataclass(frozen=True, slots=True)
class _Known:
    """What the last job has read of one session."""

    session: DatastoreSession
    pools: PoolSet
    sizes: Mapping[str, int]  # addresses of each pool that are not reserved
    blocks: Mapping[Cidr, Block]


class PoolUsage:
    """The use of all pools. `put` queues a job for the workers of the agent. Thread-safe."""

    def __init__(self, sessions: SessionPool, put: Callable[[Job], None]) -> None:
        self._sessions = sessions
        self._put = put
        self._lock = threading.Lock()
        self._is_wanted = True
        self._known: dict[int, _Known] = {}  # by the identity of the session
        self._due: dict[int, float] = {}  # monotonic time of the next job, by the same

    def refresh(self) -> None:
        """Forget sessions that are closed. Queue a job for each one that is new, or was read more than PERIOD_SECONDS ago."""
        now, present = time.monotonic(), {id(session): session for session in self._sessions.open_sessions()}
        with self._lock:
            self._known = {number: known for number, known in self._known.items() if present.get(number) is known.session}
            self._due = {number: self._due.get(number, 0.0) for number in present}
            if not self._is_wanted:
                return
            due = [number for number, moment in self._due.items() if moment <= now and present[number].backend.meter.is_up]
            self._due.update(dict.fromkeys(due, now + PERIOD_SECONDS))
        self._is_wanted = len(due) < len(present) or not present
        for number in due:
            self._put(Job(Lane("metrics"), "", partial(self._read, present[number])))

    def samples(self) -> Iterator[Sample]:
        """Yield the use of each pool, and its size."""
        self._is_wanted = True
        with self._lock:
            known = tuple(self._known.values())
        sizes: dict[str, int] = {}
        counted: dict[tuple[str, Cidr], tuple[int, int, int]] = {}  # a block may be in two sessions of one datastore
        for each in known:
            sizes.update(each.sizes)
            for block in each.session.ipam.own_blocks(each.blocks).values():
                pool = each.pools.pool_of(block.cidr.first)
                if pool is not None:
                    counted[pool.name, block.cidr] = _counts(block)
        for name, size in sorted(sizes.items()):
            own = [counts for (pool_name, _), counts in counted.items() if pool_name == name]
            yield "ipam_pool_addresses", (("pool", name),), size
            yield "ipam_blocks", (("pool", name),), len(own)
            for number, state in enumerate(_STATES):
                yield "ipam_addresses", (("pool", name), ("state", state)), sum(counts[number] for counts in own)

    def _read(self, session: DatastoreSession, _job: Job) -> None:
        try:
            with deadline.limit(_JOB_SECONDS):
                pools, reserved = read_pools(session.backend), read_reserved(session.backend)
                sizes = {pool.name: pool.cidr.size - reserved.count(pool.cidr) for pool in pools.all}
                known = _Known(session, pools, sizes, session.ipam.read_own_blocks())
            with self._lock:
                self._known[id(session)] = known
        except SvcError as failure:
            log.debug("the use of the pools is not known: %s", failure)


def _counts(block: Block) -> tuple[int, int, int]:
    """Return how many addresses are allocated, in cooldown, and free."""
    ordinals = block.ordinals
    released = [tag for tag, attribute in enumerate(block.attributes or ()) if attribute.released_at]
    cooling = sum(len(ordinals.tagged(tag)) for tag in released) if blocks.has_cooldown(block) else 0
    return ordinals.used - cooling, cooling, ordinals.size - ordinals.used
