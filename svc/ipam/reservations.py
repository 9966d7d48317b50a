"""Reservations: addresses that automatic assignment skips. A request that names such an address gets it.

The stored ranges are disjoint. Two CIDRs overlap only if one contains the other, so the inner one is dropped.
"""

from collections.abc import Iterable, Mapping

from svc._core.bitmap import OrdinalSet
from svc._core.cidr import Cidr, CidrIndex
from svc.model.field_errors import Fault, json_kind
from svc.model.resource import Resource

KIND = "IPReservation"
_NONE: Mapping[str, str] = {}


class Reserved:
    """The reserved addresses of both families.

    `unreadable` has, by reservation, the faults of documents and entries that reserve nothing because they cannot be read.
    """

    def __init__(self, ranges: Iterable[Cidr] = (), unreadable: Mapping[str, str] = _NONE) -> None:
        self.unreadable = unreadable
        self._ranges: CidrIndex[None] = CidrIndex()
        self._masks: dict[Cidr, OrdinalSet | None] = {}
        self._given = tuple(ranges)
        for cidr in sorted(self._given, key=lambda cidr: cidr.length):
            if not self._ranges.overlapping(cidr):
                self._ranges.insert(cidr, None)

    def beside(self, ranges: Iterable[Cidr]) -> "Reserved":
        """Return the reservations with further ranges."""
        return Reserved((*self._given, *ranges), self.unreadable)

    def mask(self, block: Cidr) -> OrdinalSet | None:
        """Return the reserved ordinals of a block; None if no address of it is reserved."""
        if block not in self._masks:
            self._masks[block] = self._mask(block)
        return self._masks[block]

    def ranges_in(self, cidr: Cidr) -> list[Cidr]:
        """Return the reserved parts of a CIDR, disjoint and sorted."""
        return [cidr if cidr in found else found for found in self._ranges.overlapping(cidr)]

    def count(self, cidr: Cidr) -> int:
        """Return the number of reserved addresses in a CIDR."""
        return sum(found.size for found in self.ranges_in(cidr))

    def covers(self, cidr: Cidr) -> bool:
        """Return whether every address of a CIDR is reserved, by one range or by several."""
        return self.count(cidr) == cidr.size

    def _mask(self, block: Cidr) -> OrdinalSet | None:
        found = self.ranges_in(block)
        if not found:
            return None
        ordinals = OrdinalSet(block.size)
        for cidr in found:
            ordinals.add_range(block.ordinal(cidr.first), block.ordinal(cidr.last))
        return ordinals


def read_reservations(resources: Iterable[Resource], skipped: Mapping[str, str]) -> Reserved:
    """Return the reserved addresses of IPReservation resources.

    `unreadable` of the result has the faults of invalid entries and, from `skipped`, of undecodable documents.
    """
    unreadable = undecodable("IP reservation", skipped)
    ranges: list[Cidr] = []
    for resource in resources:
        found, faults = read_entries(resource)
        ranges += found
        if faults:
            unreadable[resource.name] = f"IP reservation {resource.name!r}: {'; '.join(map(str, faults))}"
    return Reserved(ranges, unreadable)


def undecodable(noun: str, skipped: Mapping[str, str]) -> dict[str, str]:
    """Return the faults of documents that cannot be decoded, by the names of their resources."""
    return {place.rpartition("/")[2]: f"{noun} {place}: {fault}" for place, fault in skipped.items()}


def read_entries(resource: Resource) -> tuple[list[Cidr], list[Fault]]:
    """Return the valid ranges of one reservation, and the field errors of the other entries. Host bits are ignored."""
    given = resource.spec.get("reservedCIDRs") or []
    if not isinstance(given, list):
        return [], [Fault("spec.reservedCIDRs", given, f"is {json_kind(given)}", "give an array of CIDRs")]
    ranges, faults = [], []
    for index, text in enumerate(given):
        try:
            ranges.append(Cidr.masked(str(text).strip()))
        except ValueError:
            faults.append(Fault(f"spec.reservedCIDRs[{index}]", text, "is not a CIDR", "give ADDRESS/LENGTH, or an address"))
    return ranges, faults
