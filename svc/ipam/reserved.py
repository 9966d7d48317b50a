"""Reservations: addresses that automatic assignment leaves alone. Who asks for one by name gets it all the same.

Ranges are kept disjoint: one inside another adds nothing, and CIDRs overlap in no other way.
"""

import logging
from collections.abc import Iterable, Iterator

from svc._core.bitmap import OrdinalSet
from svc._core.cidr import Cidr, CidrIndex
from svc.model.resource import Resource

KIND = "IPReservation"

_log = logging.getLogger(__name__)


class Reserved:
    """The reserved addresses of both families."""

    def __init__(self, ranges: Iterable[Cidr] = ()) -> None:
        self._ranges: CidrIndex[None] = CidrIndex()
        self._masks: dict[Cidr, OrdinalSet | None] = {}
        for cidr in sorted(ranges, key=lambda cidr: cidr.length):
            if not self._ranges.overlapping(cidr):
                self._ranges.insert(cidr, None)

    def mask(self, block: Cidr) -> OrdinalSet | None:
        """The reserved ordinals of a block; None when there are none."""
        if block not in self._masks:
            self._masks[block] = self._mask(block)
        return self._masks[block]

    def ranges_in(self, cidr: Cidr) -> list[Cidr]:
        """The reserved parts of a network, disjoint, sorted."""
        return [cidr if cidr in found else found for found in self._ranges.overlapping(cidr)]

    def count(self, cidr: Cidr) -> int:
        """Reserved addresses in a network."""
        return sum(found.size for found in self.ranges_in(cidr))

    def covers(self, cidr: Cidr) -> bool:
        """Whether every address of it is reserved, be it by several ranges together."""
        return self.count(cidr) == cidr.size

    def _mask(self, block: Cidr) -> OrdinalSet | None:
        found = self.ranges_in(block)
        if not found:
            return None
        ordinals = OrdinalSet(block.size)
        for cidr in found:
            ordinals.add_range(block.ordinal(cidr.first), block.ordinal(cidr.last))
        return ordinals


def read_reservations(resources: Iterable[Resource]) -> Reserved:
    """What IPReservation resources say. An entry that is no address and no CIDR is logged and left out."""
    return Reserved(cidr for resource in resources for cidr in _entries(resource))


def _entries(resource: Resource) -> Iterator[Cidr]:
    given = resource.spec.get("reservedCIDRs") or []
    if not isinstance(given, list):
        _log.warning("IP reservation %r: spec.reservedCIDRs is no array, so it reserves nothing", resource.name)
        return
    for text in given:
        try:
            yield Cidr.masked(str(text).strip())
        except ValueError as error:
            _log.warning("IP reservation %r: an entry is left out: %s", resource.name, error)
