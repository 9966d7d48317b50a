"""Comparison of the owner of each address in blocks, handles, endpoints, the journal and the kernel."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from svc.attach.journal import Journal
from svc.attach.record import ADDED, Record
from svc.datastore.api import Backend
from svc.ipam.blocks import allocation_of
from svc.model.endpoint import KIND
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockQuery, HandleKey, HandleQuery, ResourceQuery
from svc.model.resource import Resource


@dataclass(frozen=True)
class IpamAudit:
    """The records of all addresses, read while no writer runs."""

    allocations: dict[str, str]  # address: handle
    handles: dict[str, int]  # handle: number of addresses
    endpoints: dict[str, list[str]]  # host interface: addresses
    records: list[Record]

    @staticmethod
    def read(backend: Backend, *journals: Journal) -> "IpamAudit":
        """Read the records of a datastore and of the journals of all its nodes."""
        records = [record for journal in journals for record in journal.all()]
        return IpamAudit(dict(_allocations(backend)), dict(_handles(backend)), dict(_endpoints(backend)), records)

    def entries(self) -> list[str]:
        """Return a line for each record. The list is empty if nothing is allocated and the journals have no rows."""
        return [
            *(f"address {address} of {handle}" for address, handle in self.allocations.items()),
            *(f"handle {handle} with {count} addresses" for handle, count in self.handles.items()),
            *(f"endpoint of {name} with {addresses}" for name, addresses in self.endpoints.items()),
            *(f"{record.state} row of {record.id.container_id} {record.id.ifname}" for record in self.records),
        ]

    def disagreements(self, links: Mapping[str, int]) -> list[str]:
        """Return the contradictions between the records and the host's interfaces (name: index).

        Every row must be complete.
        """
        return [
            *self._handle_disagreements(),
            *self._record_disagreements(),
            *self._unrecorded_endpoints(),
            *self._kernel_disagreements(links),
        ]

    def _handle_disagreements(self) -> Iterator[str]:
        allocated = Counter(self.allocations.values())
        for handle in allocated.keys() | self.handles.keys():
            if allocated[handle] != self.handles.get(handle, 0):
                yield f"blocks give {allocated[handle]} addresses to {handle}, its handle says {self.handles.get(handle, 0)}"

    def _record_disagreements(self) -> Iterator[str]:
        recorded = Counter(address for record in self.records for address in record.addresses)
        yield from (f"{count} rows have address {address}" for address, count in recorded.items() if count > 1)
        yield from (f"address {address} is in no row" for address in self.allocations.keys() - recorded.keys())
        for record in self.records:
            if record.state != ADDED:
                yield f"the row of {record.id.container_id} is {record.state}"
            for address in record.addresses:
                uses_pools = record.delegate is None and not record.unmanaged
                if uses_pools and self.allocations.get(address) != record.handle:
                    yield f"{record.handle} has {address} in the journal, its block says {self.allocations.get(address)}"
            endpoint = [address.split("/")[0] for address in self.endpoints.get(record.host_name, [])]
            if record.is_wired and endpoint != record.addresses:
                yield f"the endpoint of {record.host_name} has {endpoint}, its row {record.addresses}"

    def _unrecorded_endpoints(self) -> Iterator[str]:
        recorded = {record.host_name for record in self.records}
        for name in self.endpoints.keys() - recorded:
            yield f"the endpoint of {name} with {self.endpoints[name]} is in no row"

    def _kernel_disagreements(self, links: Mapping[str, int]) -> Iterator[str]:
        recorded = {record.host_name: record.host_index for record in self.records if record.is_wired}
        yield from (f"interface {name} is in no row" for name in links.keys() - recorded.keys())
        yield from (f"interface {name} of a row is missing" for name in recorded.keys() - links.keys())
        for name in recorded.keys() & links.keys():
            if recorded[name] != links[name]:
                yield f"interface {name} has index {links[name]}, its row says {recorded[name]}"


def _allocations(backend: Backend) -> Iterator[tuple[str, str]]:
    for entry in backend.list(BlockQuery()):
        block = entry.value
        assert isinstance(block, Block)
        for ordinal, tag in enumerate(block.ordinals.allocations()):
            if tag is not None:
                address = block.cidr.address(ordinal)
                owner = allocation_of(block, address)
                if owner is None or not owner.released_at:
                    yield str(address), (owner.handle_id if owner else None) or "nobody"


def _handles(backend: Backend) -> Iterator[tuple[str, int]]:
    for entry in backend.list(HandleQuery()):
        assert isinstance(entry.key, HandleKey)
        assert isinstance(entry.value, Handle)
        yield entry.key.handle, sum(entry.value.blocks.values())


def _endpoints(backend: Backend) -> Iterator[tuple[str, list[str]]]:
    for entry in backend.list(ResourceQuery(KIND)):
        assert isinstance(entry.value, Resource)
        yield entry.value.spec["interfaceName"], entry.value.spec["ipNetworks"]
