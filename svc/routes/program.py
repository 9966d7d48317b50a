"""The life of the program: it waits for changes of datastore and kernel, plans, and has the kernel part apply the plan."""

import logging
import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Final

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.end_request import EndRequest
from svc.heap import return_free_memory
from svc.model.errors import PeerError, SvcError
from svc.retry import Backoff
from svc.routes import planning, trace_file
from svc.routes.applied import Applied
from svc.routes.aside import Aside
from svc.routes.copies import Copies
from svc.routes.inputs import HANDLES, Inputs, pod_networks
from svc.routes.interfaces import Interface, read_interfaces
from svc.routes.kernel_part import KernelPart
from svc.routes.local import addresses_of_node, local_of, moved_addresses, pod_mtu, pools_by_tunnel, underlay_problems
from svc.routes.mode import Mode
from svc.routes.mtu_file import write_mtu
from svc.routes.own_marks import OwnMarks
from svc.routes.reasons import Reason
from svc.routes.report import WAITING, WORKING, Report
from svc.routes.safety import DeletionGuard, Refusals
from svc.routes.settings import Settings
from svc.routes.telemetry import Telemetry
from svc.routes.tunnel_addresses import TunnelAddresses, node_maker
from svc.routes.wanted import Wanted
from svc.values import replace

BATCH_SECONDS: Final = 0.05
COMPARE_SECONDS: Final = 60.0
KERNEL_SECONDS: Final = 0.75  # at least between comparisons after changes of the kernel, which pods cause as well
ONCE_SECONDS: Final = 30.0  # for the datastore to be read
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
_POLL_SECONDS: Final = 0.5

log = logging.getLogger("svc.routes")


class Program:
    """Everything but the settings and the servers. One thread calls `run`."""

    def __init__(self, settings: Settings, backend: Backend, kernel: KernelPart, telemetry: Telemetry) -> None:
        self._settings = settings
        self._kernel = kernel
        self._telemetry = telemetry
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._copies = Copies(backend, settings.names, self._on_change, own=settings.node, use_pod_cidr=settings.use_pod_cidr)
        self._registers = backend.atomic  # nodes of Kubernetes have their addresses there
        self._marks = OwnMarks(settings.state_dir)
        node = node_maker(backend, settings)
        self._tunnels = TunnelAddresses(node, self._on_change, kernel.tunnel_addresses(), self._marks)
        self._mode = Mode(settings.mode, trace_file.read(settings.state_dir), time.monotonic())
        self._aside = Aside(settings, kernel, self._mode)
        self._guard = DeletionGuard()
        self._refusals = Refusals()
        self._lock = threading.Lock()
        self._changed_at: float | None = None  # of the first change that is not applied yet
        self._compare_at = 0.0
        self._compared_at = 0.0
        self._not_before = 0.0  # after a failure
        self._backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
        self._interfaces: tuple[Interface, ...] = ()
        self._planned_for = -1  # the generation of the kernel
        self._own: dict[int, Address] = {}  # addresses of this node
        self._wanted: Wanted | None = None
        self._applied: Applied | None = None
        self._withholds = False  # deletions, until everything is known
        self._stays: set[Cidr] = set()  # networks whose routes stay as they are
        self._wiped = False  # whether the datastore lacked pools at the last plan
        self._ended = threading.Event()
        self._shown = ""
        telemetry.report = Report(WAITING)

    def run(self, end: EndRequest) -> int:
        """Work until the request to end. Return the exit status."""
        threading.Thread(target=self._await_end, args=(end,), name="end", daemon=True).start()
        self._copies.start()
        self._tunnels.start()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._kernel.fileno(), selectors.EVENT_READ)
                selector.register(self._wake_read, selectors.EVENT_READ)
                while not self._ended.is_set():
                    seconds = max(0.0, self._due() - time.monotonic())
                    ready = selector.select(min(seconds, _POLL_SECONDS) if self._withholds else seconds)
                    if any(key.fileobj == self._kernel.fileno() for key, _ in ready):
                        self._ended.wait(BATCH_SECONDS)  # a pod causes several notifications, while its ADD needs the processor
                    self._drain()
                    if not self._ended.is_set() and self._due() <= time.monotonic():
                        self.step()
        finally:
            self._close()
        return 1 if end.reason else 0

    def run_once(self) -> int:
        """Bring the node to what it needs. Return 1 if something remains to be done. Raise SvcError."""
        self._copies.start()
        try:
            self._copies.read_blocks()
            until = time.monotonic() + ONCE_SECONDS
            while not self._copies.is_complete:
                if time.monotonic() > until:
                    causes = "; ".join(self._copies.problems()) or "see whether its server answers"
                    raise PeerError("the datastore was not read completely in time", details=causes)
                time.sleep(BATCH_SECONDS)
            self.step()
            if self._telemetry.report.state == WORKING:
                self._tunnels.attempt_needed()
                self._compare_at = 0.0
                self.step()
        finally:
            self._close()
        report = self._telemetry.report
        for text in (*report.problems, *(f"{network}: {failure.text}" for network, failure in report.failures.items())):
            log.warning("%s", text)
        return 1 if report.failures or report.problems or report.held else 0

    def step(self) -> None:
        """Carry out what is due: a full comparison, or the changes of the datastore."""
        now = time.monotonic()
        is_full = self._compare_at <= now or self._applied is None
        with self._lock:
            changed_at, self._changed_at = self._changed_at, None
        try:
            seconds = self._round(is_full=is_full, changed_at=changed_at)
            self._backoff.reset()
            if is_full:
                self._compared_at, self._compare_at = now, now + seconds
                return_free_memory()
            if self._telemetry.report.state != WAITING:
                self._copies.read_blocks()  # the largest part, after the first routes
                self._note_kernel()
        except (SvcError, OSError) as failure:
            log.warning("cannot compare, and will try again: %s", failure)
            self._retry(str(failure))
        except Exception as failure:  # an error of svc: routes of which it knows nothing stay as they are
            log.exception("cannot compare because of an error of svc, and will try again")
            self._retry(f"an error of svc, {type(failure).__name__}: {failure}")

    def _retry(self, problem: str) -> None:
        self._telemetry.report = replace(self._telemetry.report, problems=(problem,))
        self._compare_at = self._not_before = time.monotonic() + self._backoff.next()

    def _close(self) -> None:
        self._copies.close()
        self._tunnels.close()
        self._wake_read.close()
        self._wake_write.close()

    def _await_end(self, end: EndRequest) -> None:
        while not end.wait(None):
            pass
        self._ended.set()
        self._wake()

    def _on_change(self) -> None:
        with self._lock:
            is_first = self._changed_at is None
            if is_first:
                self._changed_at = time.monotonic()
        if is_first:
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_write.send(b"x")

    def _drain(self) -> None:
        """Take the notes of other threads and of the kernel."""
        self._wake_read.setblocking(False)
        with suppress(BlockingIOError):
            self._wake_read.recv(4096)
        self._note_kernel()

    def _note_kernel(self) -> None:
        """Compare soon if the kernel has changed since the last plan began, also if `apply` has noticed it."""
        self._kernel.changed(0)
        if self._kernel.generation != self._planned_for:
            soon = max(time.monotonic() + BATCH_SECONDS, self._compared_at + KERNEL_SECONDS)
            self._compare_at = min(self._compare_at, soon)

    def _due(self) -> float:
        """Return when the next step is due."""
        if self._withholds and self._applied is not None and self._is_known():
            return self._not_before  # no event tells that a watch continues
        changed_at, retry_at = self._changed_at, self._refusals.next_due
        due = self._compare_at if changed_at is None else min(self._compare_at, changed_at + BATCH_SECONDS)
        return max(self._not_before, due if retry_at is None else min(due, retry_at))

    def _round(self, *, is_full: bool, changed_at: float | None) -> float:
        """Plan and apply. Return the seconds until the next full comparison."""
        if not self._copies.can_plan:
            self._telemetry.report = replace(self._telemetry.report, problems=tuple(self._copies.problems()))
            return _POLL_SECONDS
        inputs = self._copies.inputs()
        is_aside = self._aside.is_needed(pod_networks(inputs.pools), time.monotonic())
        if is_aside and (seconds := self._aside.seconds(self._compare_at, time.monotonic())):
            self._planned_for = self._kernel.generation  # the search for traces reads the kernel again, too
            return seconds
        if is_full:
            self._kernel.forget()
        if self._kernel.generation != self._planned_for:
            self._planned_for = self._kernel.generation  # before the reading, so that a later change is another one
            self._interfaces = read_interfaces()
        own = self._own_addresses(inputs)
        local = local_of(self._settings, inputs, self._interfaces, own, self._tunnels.addresses)
        plan = planning.plan(inputs, local, self._kernel.connected_device)
        if is_aside:
            self._stand_aside(plan.wanted, inputs)
            return COMPARE_SECONDS
        before, self._stays, self._wiped = (self._stays, self._wiped), self._staying(plan), self._is_wiped()
        is_changed = plan.wanted != self._wanted or (self._stays, self._wiped) != before
        if is_full or is_changed or self._is_due(time.monotonic()):
            self._apply(plan, changed_at, is_full=is_full)
        self._want_tunnels(inputs, own)
        problems = [*underlay_problems(self._settings, inputs, self._interfaces, own), *self._mtu_problems(inputs, own)]
        problems += [*self._tunnels.problems.values(), *self._copies.problems()]
        if self._stays:
            example = min(self._stays)
            problems.append(f"{len(self._stays)} networks, such as {example}, are in no pool: their routes stay as they are")
        self._show(plan, tuple(problems))
        return COMPARE_SECONDS

    def _own_addresses(self, inputs: Inputs) -> dict[int, Address]:
        """Return the addresses of this node. Those of its Node stay while the Node is gone, so that no tunnel moves."""
        found = addresses_of_node(self._settings, inputs, self._interfaces)
        if self._settings.node in inputs.nodes:
            self._own = found
        return found if self._settings.interface else self._own or found

    def _want_tunnels(self, inputs: Inputs, own: dict[int, Address]) -> None:
        """Have addresses assigned, and released if no device has them, no other program routes, and all pools are known."""
        is_unsure = bool(self._mode.traces) or not self._is_known() or not self._copies.has_pools
        kept = frozenset(HANDLES) if is_unsure else frozenset(self._kernel.own_tunnels())
        facts = inputs.nodes.get(self._settings.node)
        moved = moved_addresses(self._settings, self._interfaces, own, self._marks.registered)
        self._tunnels.want(pools_by_tunnel(self._settings, inputs), {**own, **moved} if self._registers else {}, kept, facts)

    def _is_due(self, now: float) -> bool:
        due = self._refusals.next_due
        return (due is not None and due <= now) or (self._withholds and self._is_known())

    def _stand_aside(self, wanted: Wanted, inputs: Inputs) -> None:
        """Make way for the other program, and report why."""
        self._tunnels.rest()
        self._wanted = self._applied = None
        self._refusals = Refusals()
        report = self._aside.round(wanted, pod_networks(inputs.pools), self._may_delete, time.monotonic())
        self._telemetry.report = replace(report, held=self._guard.held)
        stays = f"{report.remaining} own routes stay until it has its own" if report.remaining else "nothing is changed"
        self._log(f"another program routes: {stays}")

    def _apply(self, plan: planning.Plan, changed_at: float | None, *, is_full: bool) -> None:
        """Have the kernel part add, then delete what may be deleted."""
        now, wanted = time.monotonic(), plan.wanted
        routes = self._refusals.due_routes(wanted.routes, now)
        if self._stays:
            routes = {network: way for network, way in routes.items() if network not in self._stays}
        tried, kept = replace(wanted, routes=routes), (wanted.routes.keys() - routes.keys()) | self._stays
        is_wiped = self._is_wiped()
        rest = (wanted.peers, wanted.tunnels, wanted.nat)
        has_rest = self._wanted is None or rest != (self._wanted.peers, self._wanted.tunnels, self._wanted.nat)
        is_settled = not has_rest and not is_wiped and not self._kernel.surplus(routes, kept)
        at_once = is_settled and self._may_delete(self._kernel.own_routes(), 0, now)
        applied = self._kernel.apply(tried, may_delete=at_once, kept=kept)
        self._refusals.record(routes, applied, now)
        own = self._kernel.own_routes()
        is_surplus = applied.unwanted or is_wiped or is_full or has_rest
        if not at_once and self._may_delete(own, applied.unwanted, now) and is_surplus:
            applied = self._kernel.apply(tried, may_delete=True, kept=kept)
        self._wanted, self._applied = wanted, applied
        self._telemetry.applied(applied, routes, None if changed_at is None else time.monotonic() - changed_at)

    def _staying(self, plan: planning.Plan) -> set[Cidr]:
        """Return the networks of no pool whose routes stay as they are: without the pool, their way is not known.

        Those are the ones with a route through a tunnel, and those without a route while a pool may be unreadable."""
        found = {network: row.way for network, row in plan.rows.items() if not row.pool and _may_have_way(row)}
        lacks_pool = self._copies.is_lacking and not self._settings.use_pod_cidr
        uses = {network: self._kernel.uses_tunnel(network) for network in found}
        return {network for network, way in found.items() if uses[network] or (lacks_pool and way and uses[network] is None)}

    def _is_known(self) -> bool:
        """Return whether everything is known that has to be known before a deletion."""
        copies = self._copies
        return copies.is_complete and copies.interrupted_since is None and not copies.is_lacking

    def _is_wiped(self) -> bool:
        """Return whether the datastore lacks pools: its other parts may be read a moment later."""
        return not self._settings.use_pod_cidr and not self._copies.has_pools

    def _may_delete(self, own: int, doomed: int, now: float) -> bool:
        self._withholds = not self._is_known()
        if self._withholds:
            return False
        is_wiped = self._is_wiped()
        doomed = own if is_wiped else doomed
        before = self._guard.held
        is_allowed = self._guard.allows(own, doomed, now, is_wiped=is_wiped)
        if self._guard.held and not before:
            log.warning("%d of %d routes are not in the datastore any more: they are kept for 10 minutes", doomed, own)
        return is_allowed

    def _mtu_problems(self, inputs: Inputs, own: dict[int, Address]) -> list[str]:
        problem = write_mtu(self._settings.state_dir, pod_mtu(self._settings, inputs, self._interfaces, own))
        return [problem] if problem else []

    def _show(self, plan: planning.Plan, problems: tuple[str, ...]) -> None:
        applied = self._applied or Applied()
        every = (*applied.problems, *problems)
        report = Report(WORKING, plan.rows, applied, self._refusals.failures, self._mode.traces, every, self._guard.held)
        self._telemetry.report = report
        missing = Counter(reason.name for _, reason, _ in report.missing())
        listed = ", ".join(f"{number} {name}" for name, number in sorted(missing.items()))
        without = f"{sum(missing.values())} networks without one{f' ({listed})' if listed else ''}"
        self._log(f"{len(applied.routes)} routes, {without}")
        for problem in every:
            log.debug("%s", problem)

    def _log(self, text: str) -> None:
        """Log what has changed since the last time."""
        if text != self._shown:
            log.info("%s", text)
        self._shown = text


def _may_have_way(row: planning.Row) -> bool:
    return row.way is not None or row.reason is Reason.NO_POOL
