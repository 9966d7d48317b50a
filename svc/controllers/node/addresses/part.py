"""The part of controller `node` that releases leaked addresses.

A look at the tables finds candidates, and sends no request. What has been a candidate for the grace period is read again, live,
before it is released. `judgement.py` says why a release is safe.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from svc._core.cidr import Address
from svc.admin.ipam_check.uses import Uses
from svc.admin.release_record import HOUR, MASS, SETBACK, Record, Stop, acknowledged_id, limit, record_of
from svc.attach.datastore_ready import DatastoreReadiness
from svc.attach.handles import handle_of
from svc.controllers.conditions import FALSE, TRUE, Condition
from svc.controllers.controller import Controller, Shared, Unsettled
from svc.controllers.node.addresses.candidates import Candidates
from svc.controllers.node.addresses.held import Held, all_held
from svc.controllers.node.addresses.judgement import Facts
from svc.controllers.node.addresses.ledger import Ledger
from svc.controllers.node.addresses.live import Confirmed, LiveCheck
from svc.controllers.node.addresses.release import Releaser
from svc.controllers.node.addresses.setbacks import Seen, Setbacks
from svc.controllers.node.addresses.survey import Survey, survey
from svc.controllers.nodes import known_kube_name
from svc.controllers.settings import NODE
from svc.controllers.table import Table
from svc.metrics import Sample
from svc.model.controllers_configuration import KEY
from svc.model.errors import SvcError
from svc.model.keys import ResourceKey

PRESENT = ""  # the item that stands for the addresses of all nodes that exist; other items are the names of lost nodes
CONDITION = "AddressRelease"
_LOOK_SECONDS = 10.0  # minimum time between two looks while objects change
_LOST_SECONDS = 60.0  # between two questions whether a lost node is gone
_LONGEST_LAG = 60.0  # seconds; a table without the right `watch` is listed more often
_LONGEST_SECONDS = 300.0  # between two looks without a grace period

log = logging.getLogger("svc.controllers")


class Addresses(Controller[str]):
    """Looks at all allocations, and releases those whose pod or node no longer exists."""

    name = NODE

    def __init__(
        self, shared: Shared, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        tables, store = shared.tables, shared.store
        self._pods, self._kube_nodes, self._nodes, self._blocks = tables.pods, tables.kube_nodes, tables.nodes, tables.blocks
        self._endpoints = tables.endpoints if store.atomic else None
        self._pools, self._reservations = tables.pools, tables.reservations
        self._configurations = tables.configurations
        watched: list[Table[Any, Any]] = [self._pods, self._kube_nodes, self._nodes, self._blocks, self._configurations]
        if self._endpoints is not None:
            watched.append(self._endpoints)
        super().__init__(shared, watched)
        self._clock, self._wall_clock = clock, wall_clock
        self._candidates, self._survey, self._facts = Candidates(), Survey(), Facts({})
        self._gap = ""  # why the facts may lack changes
        self._recorded: dict[tuple[str, int | None], float] = {}  # when the releases of candidates were recorded
        self._networks: frozenset[str] = frozenset()
        self._usual_network = handle_of(shared.names, shared.names.network, "")
        self._readiness = DatastoreReadiness(store)
        self._releaser = Releaser(store, shared.names)
        self._ledger = Ledger(store, shared.names, wall_clock)
        self._gone = tables.gone_nodes
        self._setbacks = Setbacks(self._seen)
        self._planning = threading.Lock()  # guards the time of the next look
        self._look_due = clock()
        self._looked_at = clock()
        self.reclaimed: Counter[tuple[str, str]] = Counter()  # released addresses by address and node, for the metrics
        self._shown_stop: Stop | None = None
        shared.conditions.await_judgement(CONDITION)
        for table in watched:
            table.on_change(self._note_change)
        shared.live.on_change(lambda _: self.begin_round())

    # looks

    def round_items(self) -> Iterable[str]:
        """Look at all allocations. Return the lost nodes with addresses, and PRESENT if a release or a stop may be due."""
        now, grace = self._clock(), self._grace
        with self._planning:
            self._look_due = math.inf  # before the tables are read: a later change asks for another look
        self._gap = self._found_gap()  # before the tables are read: one that ends later does not count as closed
        self._facts = self._read_tables()
        self._survey = survey(self._facts, all_held(self._blocks.snapshot().values()), self._usual_network)
        self._networks = self._survey.networks
        self._candidates.observe(now, self._survey.suspects)
        present = {_identity(held) for held in self._survey.suspects.values()}
        self._recorded = {each: at for each, at in self._recorded.items() if each in present and now - at < HOUR}
        self._looked_at = now
        self._plan_look(now, grace / 2 if grace > 0 else _LONGEST_SECONDS)
        if (due := self._candidates.next_due(now, grace)) is not None:
            self._plan_look(due, 0.0)
        suspected = {held.node for held in self._survey.suspects.values()} | self._survey.tunnels.keys()
        items = [node for node in sorted(suspected) if node and self._facts.has_lost(node)]
        if items:
            self._plan_look(now, _LOST_SECONDS)
        is_due = self._confirmed(now) or self._setbacks.was_recent(now) or not self._is_shown()
        return [*items, PRESENT] if is_due else items

    def settle(self, item: str) -> None:
        """Release what is leaked, after live reads. Do nothing after a stop that is not acknowledged."""
        if gap := self._gap or self._found_gap():
            raise Unsettled(f"nothing is released, because {gap}")
        self._readiness.require_by_own_read()
        if not self._may_release():
            return
        if item == PRESENT:
            self._release_present()
        elif self._gone.is_gone(item):
            self._release_node(item)

    def _found_gap(self) -> str:
        """Say which table may lack changes: any pod or endpoint may show an address, not only that of its owner."""
        for table in self._tables:
            if (lag := table.lag) > _LONGEST_LAG:
                return f"the watch of {table.what} has been interrupted for {lag:.0f} s"
        return ""

    def families(self) -> Iterable[Sample]:
        from svc.controllers.node.addresses.metrics import families, read_pools  # only if metrics are served

        pools, reserved = read_pools(self._pools.snapshot().values(), self._reservations.snapshot().values())
        blocks = (entry.value for entry in self._blocks.snapshot().values())
        return families(blocks, pools, reserved, (each.held for each in self._candidates.all()), self.reclaimed.copy())

    def shown(self, item: str) -> str:
        return f"the addresses of node {item}" if item else "the leaked addresses"

    def _next(self) -> str | None:
        """Begin a look when it is due, beside the rounds of the configuration."""
        now = self._clock()
        if not self.shared.election.leads:
            self.shared.conditions.await_judgement(CONDITION)  # the leader may know of another stop
        self._setbacks.observe(now)
        if now >= self._look_due:
            self.begin_round()
        return super()._next()

    def _note_change(self, _keys: Collection[Any]) -> None:
        self._plan_look(self._looked_at, _LOOK_SECONDS)

    def _plan_look(self, since: float, seconds: float) -> None:
        """Have the next look at this time, or earlier if that is planned."""
        with self._planning:
            self._look_due = min(self._look_due, since + seconds)

    def _read_tables(self) -> Facts:
        endpoints = () if self._endpoints is None else self._endpoints.snapshot().values()
        kube_nodes = self._kube_nodes.snapshot()
        names = self.shared.names  # the addresses of a malformed Node are kept
        nodes = {key.name: known_kube_name(names, entry.value) for key, entry in self._nodes.snapshot().items()}
        return Facts(self._pods.snapshot(), endpoints, nodes, kube_nodes, self._networks)

    @property
    def _grace(self) -> float:
        return self.shared.live.now.leak_grace_seconds

    def _seen(self) -> Seen:
        return Seen(self.shared.store.position(), (self._pods.setbacks, self._kube_nodes.setbacks))

    def _confirmed(self, now: float, *, node: str = "") -> Mapping[str, Sequence[Held]]:
        """Return, by handle, the candidates that may be released; with `node` those of this node, which is gone."""
        found = self._candidates.confirmed(now, self._grace, gone=(node,) if node else ())
        return {
            handle: held
            for handle, held in found.items()
            if handle not in self._survey.kept and (not node or held[0].node == node)
        }

    # stops

    def _may_release(self) -> bool:
        """Return whether releases may be made. Stop them if a revision ran backwards."""
        record, now = self._ledger.read(), self._clock()
        if record.stop is None and self._setbacks.was_recent(now):
            wanted = sum(map(len, self._confirmed(now).values()))
            record = self._stop(
                SETBACK, wanted, "the datastore or the Kubernetes API went back to an earlier state, as after a restore"
            )
            self._setbacks.settle()
        self._show(record)
        return record.stop is None

    def _has_gone_back(self) -> bool:
        """Return whether a revision ran backwards during the live reads, and make a stop then."""
        self._setbacks.observe(self._clock())
        return self._setbacks.was_recent(self._clock()) and not self._may_release()

    def _stop(self, reason: str, wanted: int, problem: str) -> Record:
        """Record a stop, and return the record."""
        id_ = datetime.fromtimestamp(self._wall_clock(), timezone.utc).isoformat(timespec="milliseconds")
        remedy = "compare with `svcctl ipam check`; if that is right, run `svcctl ipam release --acknowledge`"
        stop = self._ledger.stop(Stop(id_, reason, f"{problem}: {remedy}", wanted))
        log.error("controller %s releases no addresses any more: %s", self.name, stop.message)
        return Record(stop=stop)

    def _show(self, record: Record) -> None:
        stop = self._shown_stop = record.stop
        if stop is None:
            shown = Condition(CONDITION, TRUE, "Running", "leaked addresses are released")
        else:
            shown = Condition(CONDITION, FALSE, stop.reason, f"{stop.message} (stopped at {stop.id})")
        self.shared.conditions.set(shown)

    def _is_shown(self) -> bool:
        """Return whether the condition shows the record as far as the table has it, and no acknowledgement waits."""
        entry = self._configurations.get(KEY)
        if entry is None:  # its creation causes a look
            return True
        try:
            stop, acknowledged = record_of(self.shared.names, entry.value).stop, acknowledged_id(self.shared.names, entry.value)
        except ValueError:
            return False  # `settle` reports it
        is_judged = CONDITION not in self.shared.conditions.with_awaited()[1]
        return is_judged and stop == self._shown_stop and (stop is None or stop.id != acknowledged)

    # releases

    def _release_present(self) -> None:
        """Release the confirmed candidates, unless they are too many: then none of them.

        A release that fails after it was recorded, as while the datastore does not answer, is not recorded again.
        """
        wanted = self._confirmed(self._clock())
        total, left = self._survey.total, self._ledger.left(self._survey.total)
        ready, failures = self._read_live(wanted, left)
        if self._has_gone_back():
            return
        further = [identity for each in ready for identity in self._unrecorded(each.held)]
        if len(further) > left or (ready and not self._ledger.reserve(len(further), total)):
            number = sum(map(len, wanted.values()))
            problem = f"{number} of {total} addresses look leaked, and {left} of {limit(total)} may still be released this hour"
            self._show(self._stop(MASS, number, problem))
            return
        self._recorded |= dict.fromkeys(further, self._clock())
        self._release(ready)
        _raise_first(failures)

    def _unrecorded(self, held: Iterable[Held]) -> list[tuple[str, int | None]]:
        """Return the allocations whose release is not recorded yet."""
        return [identity for each in held if (identity := _identity(each)) not in self._recorded]

    def _release_node(self, node: str) -> None:
        """Release the addresses of a node that is gone, those of its tunnels last."""
        wanted = self._confirmed(self._clock(), node=node)
        ready, failures = self._read_live(wanted)
        if self._has_gone_back():
            return
        released = self._release(ready)
        _raise_first(failures)
        held = {each.address for each in self._survey.suspects.values() if each.node == node}
        is_empty = node not in self._survey.busy and held <= released
        if is_empty and self._survey.tunnels.get(node) and self._gone.is_gone(node):
            self._release_tunnels(node)

    def _read_live(
        self, wanted: Mapping[str, Sequence[Held]], most: int | None = None
    ) -> tuple[list[Confirmed], list[SvcError]]:
        """Return the handles that live reads confirm, and failures of reads. End when more than `most` addresses are."""
        ready: list[Confirmed] = []
        failures: list[SvcError] = []
        count, shared = 0, self.shared
        live = LiveCheck(shared.client, shared.store, shared.names, stores_endpoints=self._endpoints is not None)
        for held in wanted.values():
            shared.election.require()  # a server that does not answer takes some seconds for each pod
            try:
                found = live.confirm(held, self._facts, self._survey.siblings)
            except SvcError as failure:
                failures.append(failure)
                continue
            if isinstance(found, str):
                self._keep(held, found)
                continue
            ready.append(found)
            count += len(self._unrecorded(held))
            if most is not None and count > most:
                break
        return ready, failures

    def _release(self, ready: Sequence[Confirmed]) -> set[str]:
        """Release handles. Return the addresses that are free then: the datastore may show that some must be kept."""
        released: set[str] = set()
        for each, refusal in self._releaser.release(ready):
            if refusal:
                self._keep(each.held, refusal)
                continue
            self._candidates.forget(held.address for held in each.held)
            self._count(each.held)
            released.update(held.address for held in each.held)
            shown = ", ".join(held.address for held in each.held)
            log.info("controller %s: released %s of %s: %s", self.name, shown, each.handle, each.reason)
        return released

    def _release_tunnels(self, node: str) -> None:
        uses = self._tunnels()
        for held in self._survey.tunnels[node]:
            others = uses.by_address.get(Address(held.address), ())
            if held.sequence is None or uses.unreadable_nodes or any(use.owner != node for use in others):
                continue
            if not self._releaser.release_tunnel(held):
                self._count([held])
                log.info("controller %s: released %s of %s: its node is gone", self.name, held.address, held.handle)

    def _tunnels(self) -> Uses:
        """Return the addresses that Nodes of the datastore have at their tunnels."""
        uses = Uses()
        for key, entry in self._nodes.snapshot().items():
            assert isinstance(key, ResourceKey)
            uses.add_node(key.name, key, entry.value)
        return uses

    def _keep(self, held: Sequence[Held], reason: str) -> None:
        """Let a handle be valid again."""
        self._candidates.forget(each.address for each in held)
        log.info("controller %s keeps the addresses of %s: %s", self.name, held[0].handle, reason)

    def _count(self, held: Iterable[Held]) -> None:
        for each in held:
            self.reclaimed[each.address, each.node] += 1


def _identity(held: Held) -> tuple[str, int | None]:
    """Return what no other allocation has."""
    return held.address, held.sequence


def _raise_first(failures: Sequence[SvcError]) -> None:
    if failures:
        raise Unsettled(f"{len(failures)} pods could not be read, the first because: {failures[0]}")
