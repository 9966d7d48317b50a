"""The controller `loadbalancer`: services of type LoadBalancer have the addresses that they request.

The handle of the addresses follows from the UID of the service, so that a repetition finds what an interrupted attempt has
assigned. The status shows an address only while the service holds it: it is shown after the assignment, and hidden before the
release.

Another program may serve the services without a class. So while a service has no address of svc, what its status shows stays,
except addresses of the pools for services.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from svc._core.cidr import Address, Cidr
from svc.attach.datastore_ready import DatastoreReadiness
from svc.controllers.controller import Controller, Shared, Unsettled
from svc.controllers.live_reads import find_object
from svc.controllers.loadbalancer.service_allocations import ServiceAllocations
from svc.controllers.loadbalancer.service_status import ServiceStatus, service_path
from svc.controllers.loadbalancer.services import TYPE, ServiceRow, fitting, has_another_class, missing, read_service
from svc.controllers.settings import LOAD_BALANCER as CONTROLLER
from svc.controllers.table import ApiTable
from svc.datastore.api import Entry, StoreError
from svc.datastore.orch.client import segment
from svc.ipam.load_balancer import LOAD_BALANCERS, attributes_of, handle_of
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.leader.election import NotLeading
from svc.model.errors import CallerError, SvcError
from svc.model.keys import HandleKey, ResourceQuery
from svc.model.pool import LOAD_BALANCER, Pool
from svc.model.resource import Resource
from svc.values import replace

Json = dict[str, Any]

log = logging.getLogger("svc.controllers")


class ServiceAddresses(Controller[str]):
    """The controller. An item is a service, NAMESPACE/NAME."""

    def __init__(self, shared: Shared) -> None:
        self.name = CONTROLLER
        self._names = shared.names
        self._ipam = IpamService(shared.store, LOAD_BALANCERS)
        self._status = ServiceStatus(shared)
        self._readiness = DatastoreReadiness(shared.store)
        self._services = ApiTable(shared.client, "/api/v1/services", partial(read_service, shared.names), shared.fail)
        self._blocks, self._pools = shared.tables.blocks, shared.tables.pools
        self._allocations = ServiceAllocations(self._blocks)
        super().__init__(shared, (self._services, self._blocks, self._pools))
        shared.tables.keep(self._services)
        self._services.on_change(self._add_differing)
        self._blocks.on_change(lambda keys: self._add_differing(self._allocations.refresh(keys)))
        self._pools.on_change(lambda _: self._add_differing(self._services.snapshot()))
        shared.live.on_change(lambda _: self.begin_round())

    def round_items(self) -> Iterable[str]:
        return self._differing({*self._services.snapshot(), *self._allocations.services()})

    def settle(self, item: str) -> None:
        """Read the service. Release what it does not request, assign what it lacks, and show the result in its status."""
        service = self._find(item)
        row = None if service is None else self._managed(read_service(self._names, service)[1])
        allocated = self._allocations.of(item)
        if service is not None and row is None:
            self._hide(item, service, allocated)
        for handle, addresses in allocated.items():
            if row is None or handle != row.handle:
                self._release(item, handle, addresses, ())
        if service is not None and row is not None:
            self._serve(item, service, row, allocated.get(row.handle, set()))

    def _managed(self, row: ServiceRow | None) -> ServiceRow | None:
        """Return the row if the service gets addresses."""
        is_managed = row is not None and (row.request.is_explicit or self.shared.live.now.assigns_all_services)
        return row if is_managed else None

    def _find(self, item: str) -> Json | None:
        return find_object(self.shared.client, service_path(item))

    def _serve(self, item: str, service: Json, row: ServiceRow, recorded: set[Address]) -> None:
        if row.problem:
            raise Unsettled(row.problem)
        held = self._held(item, row.handle, recorded)
        if not held and self._is_not_served(row):
            return
        pools = self._pools_by_name(self.shared.store.list(ResourceQuery("IPPool"))) if row.request.pools else {}
        kept = fitting(row.request, held, pools, row.ingress)
        if len(kept) < len(held):
            service = self._show(service, row, kept, held)
        if len(kept) < len(held) or self._is_miscounted(row.handle, len(held)):
            self._release(item, row.handle, held, kept)
        reasons = []
        for wanted in missing(row.request, kept):
            try:
                kept = (*kept, self._assign(item, row, wanted, pools))
            except (NotLeading, StoreError):
                raise
            except SvcError as refusal:
                reasons.append(self._reason(wanted, refusal))
        self._show(service, row, kept, ())
        if reasons:
            raise Unsettled("; ".join(reasons))

    def _is_not_served(self, row: ServiceRow) -> bool:
        """Return whether a service has no request of its own, and no pool is for services."""
        return not row.request.is_explicit and not self._service_pools()

    def _show(self, service: Json, row: ServiceRow, kept: Collection[Address], lost: Iterable[Address]) -> Json:
        """Have the status show the kept addresses alone. Without any, hide those that are lost or of pools for services."""
        if kept:
            return self._status.show(service, kept)
        shown = [Address(text) for text in row.ingress if text]
        pools = self._service_pools()
        return self._status.hide(service, {*lost, *(each for each in shown if any(each in pool for pool in pools))})

    def _reason(self, wanted: Address | int, refusal: SvcError) -> str:
        """Return why an address was not assigned. Name the service that has it: its address must not be released by hand."""
        owner = self._allocations.service_with(wanted) if isinstance(wanted, Address) else ""
        if not owner:
            return str(refusal)
        return f"address {str(wanted)!r} belongs to service {owner}: request another one, or change that service"

    def _held(self, item: str, handle: str, recorded: set[Address]) -> set[Address]:
        """Return the addresses of the handle, read now. Mend a handle that was lost, so that none is assigned in addition."""
        held = set(self._ipam.addresses_of(handle))
        unlisted = {(handle, address) for address in recorded - held}
        unlisted -= self._ipam.not_held(unlisted) if unlisted else set()
        if not unlisted:
            return held
        held |= {address for _, address in unlisted}
        request = Assign(handle, self._attributes(item), addresses=tuple(held), use=LOAD_BALANCER, restores=True)
        return set(self._ipam.assign(request).addresses)

    def _is_miscounted(self, handle: str, held: int) -> bool:
        """Return whether an assignment has failed between the writes of a handle and a block."""
        entry = self.shared.store.find(HandleKey(handle))
        return entry is not None and sum(entry.value.blocks.values()) != held

    def _assign(self, item: str, row: ServiceRow, wanted: Address | int, pools: dict[str, Cidr]) -> Address:
        """Assign one address. Prefer the one that the status shows, which the datastore may have lost."""
        shown = () if isinstance(wanted, Address) else [Address(text) for text in row.ingress if text]
        for address in fitting(row.request, shown, pools, ()) if shown else ():
            if address.version == wanted:
                try:
                    return self._assigned(item, row, address)
                except CallerError:
                    break  # it belongs to another service, or to no pool for services
        return self._assigned(item, row, wanted)

    def _assigned(self, item: str, row: ServiceRow, wanted: Address | int) -> Address:
        self._require_no_hold()
        request = Assign(row.handle, self._attributes(item), use=LOAD_BALANCER, max_per_handle=1)
        if isinstance(wanted, Address):
            request = replace(request, addresses=(wanted,))
        else:
            named = dict(row.request.pools)
            labels = {} if wanted in named else self._namespace_labels(item)
            request = replace(request, versions=(wanted,), pools=named, namespace_labels=labels)
            self._ipam.avoid(self._lost_by_others(item))
        (found,) = self._ipam.assign(request).addresses
        log.info("controller %s: %s has address %s", self.name, item, found)
        return found

    def _require_no_hold(self) -> None:
        """Raise Unsettled while nodes claim the addresses of their pods again, because the datastore has lost data."""
        self._readiness.require()
        if seconds := self._readiness.identity.held_seconds(self._ipam.has_pools):
            raise Unsettled(f"the datastore has lost data: nodes claim the addresses of their pods again for {seconds:.0f} s")

    def _lost_by_others(self, item: str) -> list[Address]:
        """Return the addresses that other services show and do not hold, as after a restore of the datastore.

        Clients use them. They are for these services, which may have their turn later.
        """
        shown = {text for service, row in self._services.snapshot().items() if service != item for text in row.ingress if text}
        held = self._allocations.addresses()
        return [address for text in shown if (address := Address(text)) not in held]

    def _attributes(self, item: str) -> dict[str, str]:
        namespace, _, name = item.partition("/")
        return attributes_of(namespace, name, TYPE, time.time_ns())

    def _namespace_labels(self, item: str) -> dict[str, str]:
        namespace = self.shared.client.get(f"/api/v1/namespaces/{segment(item.partition('/')[0])}")
        return dict(namespace["metadata"].get("labels") or {})

    def _hide(self, item: str, service: Json, allocated: dict[str, set[Address]]) -> None:
        """Hide the addresses that a service is about to lose, unless another program serves it."""
        namespace, _, name = item.partition("/")
        own = allocated.get(handle_of(namespace, name, str(service["metadata"]["uid"])), set())
        if not has_another_class(self._names, service):
            self._status.hide(service, own)

    def _release(self, item: str, handle: str, addresses: Iterable[Address], kept: Iterable[Address]) -> None:
        """Release the addresses of a handle, except those to keep. `addresses` are known ones, in case the handle is lost."""
        keep = frozenset(kept)
        self._ipam.release(Release(handle, keep, tuple(addresses)))
        if gone := sorted(str(address) for address in addresses if address not in keep):
            log.info("controller %s: released %s of %s", self.name, ", ".join(gone), item)

    def _add_differing(self, services: Collection[str]) -> None:
        if services and self.is_ready:
            self.add(self._differing(services))

    def _differing(self, services: Iterable[str]) -> list[str]:
        pools = self._pools_by_name(self._pools.snapshot().values())
        return [service for service in services if self._differs(service, pools)]

    def _differs(self, service: str, pools: dict[str, Cidr]) -> bool:
        row, allocated = self._managed(self._services.get(service)), self._allocations.of(service)
        if row is None:
            return bool(allocated)
        held = allocated.pop(row.handle, set())
        if not held and not allocated and not row.problem and self._is_not_served(row):
            return False
        if allocated or row.problem or len(row.ingress) != len(held) or set(row.ingress) != {str(each) for each in held}:
            return True
        kept = fitting(row.request, held, pools, row.ingress)
        return len(kept) != len(held) or bool(missing(row.request, kept))

    def _service_pools(self) -> list[Cidr]:
        """Return the CIDRs of the pools for services, as far as the table shows; also of disabled ones."""
        return [pool.cidr for pool in _readable(self._pools.snapshot().values()) if LOAD_BALANCER in pool.allowed_uses]

    def _pools_by_name(self, entries: Iterable[Entry[Resource]]) -> dict[str, Cidr]:
        """Return the CIDRs of the pools, by name and by CIDR. Skip unreadable ones."""
        found = {}
        for pool in _readable(entries):
            found[pool.name] = found[str(pool.cidr)] = pool.cidr
        return found


def _readable(entries: Iterable[Entry[Resource]]) -> Iterator[Pool]:
    for entry in entries:
        with suppress(ValueError):
            yield Pool.from_resource(entry.value)
