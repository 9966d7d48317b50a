"""Pools and reservations: which pools serve a request, and which addresses automatic assignment skips.

A request that names pools gets addresses from these pools in the given order; their selectors are ignored. Other requests use
every usable pool with assignmentMode Automatic, in name order. The nodeSelector of the pool must select the node, and the
namespaceSelector must select the namespace (docs/reference/spec.md, rules R1 and R2).

A request that names a reserved address gets it.
"""

from collections.abc import Iterable, Mapping, Sequence

from svc._core.bitmap import OrdinalSet
from svc._core.cidr import Address, Cidr, CidrIndex
from svc.datastore.api import Backend
from svc.ipam import errors
from svc.model.errors import Code, PeerError, SvcError
from svc.model.field_errors import FieldError, json_kind
from svc.model.keys import ResourceQuery
from svc.model.pool import AUTOMATIC, WORKLOAD, Pool
from svc.model.resource import Resource

RESERVATION = "IPReservation"
_NONE: Mapping[str, str] = {}


class PoolSet:
    """The pools of a datastore: usable pools by name, CIDR and address, and all pools by address.

    `unreadable` has the errors of the pools that cannot be read, by name; `unreadable_cidrs` has those with a CIDR, by CIDR.
    """

    def __init__(
        self, pools: Sequence[Pool], unreadable: Mapping[str, str] = _NONE, unreadable_cidrs: Mapping[str, str] = _NONE
    ) -> None:
        self.all = sorted(pools, key=lambda pool: pool.name)
        self.unreadable = unreadable
        self._unreadable_cidrs = unreadable_cidrs
        self._by_text: dict[str, Pool] = {}
        self._usable: CidrIndex[Pool] = CidrIndex()
        self._known: CidrIndex[Pool] = CidrIndex()
        for pool in self.all:
            self._known.insert(pool.cidr, pool)
            if pool.usable:
                self._by_text[str(pool.cidr)] = pool
                self._by_text[pool.name] = pool
                self._usable.insert(pool.cidr, pool)

    def block_of(self, address: Address, use: str = WORKLOAD) -> Cidr:
        """Return the CIDR of the block that has the address. Raise CallerError if no usable pool for this use has it."""
        pool = self._usable.match(address)
        if pool is None:
            skipped = errors.passed([*self.unreadable.values()])
            raise errors.AddressUnavailable(
                f"address {str(address)!r} is not in any enabled IP pool",
                details=f"ask for an address inside a pool (`svcctl pool get` lists them){skipped}",
            )
        if use not in pool.allowed_uses:
            raise errors.pools_of_other_use([pool], use)
        return pool.cidr.block_of(address, pool.block_size)

    def pool_of(self, address: Address) -> Pool | None:
        """Return the pool that has the address, usable or not; None if no pool has it."""
        return self._known.match(address)

    def any_block_of(self, address: Address) -> Cidr | None:
        """Return the CIDR of the block that has the address, in a usable pool or another one; None if no pool has it."""
        pool = self._known.match(address)
        return None if pool is None else pool.cidr.block_of(address, pool.block_size)

    def named(self, names: Sequence[str], version: int, use: str = WORKLOAD) -> list[Pool]:
        """Return the named pools that allow this use, in the given order. Raise PeerError if one cannot be read.

        Raise CallerError if one does not exist or is of the other family, or if none allows this use.
        """
        pools = [self._named(name, version) for name in names]
        fit = [pool for pool in pools if use in pool.allowed_uses]
        if not fit:
            raise errors.pools_of_other_use(pools, use)
        return fit

    def selected(
        self, version: int, node_labels: Mapping[str, str], namespace_labels: Mapping[str, str] = _NONE, use: str = WORKLOAD
    ) -> list[Pool]:
        """Return the pools that serve a request without pool names, in name order. Without a namespace it has no labels."""
        return [
            pool
            for pool in self.all
            if pool.cidr.version == version and not rejection_reason(pool, node_labels, namespace_labels, use)
        ]

    def is_ineligible(self, cidr: Cidr, node_labels: Mapping[str, str], *, usable: bool) -> bool:
        """Return whether the block's pool, which must be usable if `usable`, has blocks of another size, or does not select the
        node with these labels."""
        pool = (self._usable if usable else self._known).match(cidr.first)
        return pool is not None and not (cidr.length == pool.block_size and pool.node_selector.matches(node_labels))

    def _named(self, name: str, version: int) -> Pool:
        pool = self._by_text.get(name) or self._by_text.get(_canonical(name))
        if pool is None:
            raise self._unknown(name)
        if pool.cidr.version != version:
            raise errors.PoolRefused(
                f"IP pool ({name}) is not an IPv{version} pool",
                details=f"name it in the list of the other family, or remove it from the IPv{version} pools",
            )
        return pool

    def _unknown(self, name: str) -> SvcError:
        """Return the error for a named pool that cannot be used. A pool without a readable CIDR may have the requested one."""
        if error := self.unreadable.get(name) or self._unreadable_cidrs.get(_canonical(name)):
            return PeerError(
                f"a pool that is asked for cannot be used: {error}",
                details="put it right with `svcctl pool apply`; a document that cannot be decoded must be deleted before",
                code=Code.POOL,
            )
        undecodable = [error for error in self.unreadable.values() if error not in self._unreadable_cidrs.values()]
        return errors.pool_missing(name, undecodable if "/" in name else ())


def rejection_reason(pool: Pool, node_labels: Mapping[str, str], namespace_labels: Mapping[str, str], use: str) -> str:
    """Return the reason if a pool does not serve a request that does not name it; an empty text if it does."""
    if not pool.usable:
        return "is disabled" if pool.disabled else "is out of use"
    if pool.assignment_mode != AUTOMATIC:
        return f"has assignmentMode {pool.assignment_mode}"
    if use not in pool.allowed_uses:
        return f"is for {' and '.join(pool.allowed_uses)}"
    if not pool.node_selector.matches(node_labels):
        return f"selects nodes by {pool.node_selector}"
    if not pool.namespace_selector.matches(namespace_labels):
        return f"selects namespaces by {pool.namespace_selector}"
    return ""


class Reserved:
    """The reserved ranges of both families, disjoint. `unreadable` has the errors of reservations by name."""

    def __init__(self, ranges: Iterable[Cidr] = (), unreadable: Mapping[str, str] = _NONE) -> None:
        self.unreadable = unreadable
        self._ranges: CidrIndex[None] = CidrIndex()
        self._masks: dict[Cidr, OrdinalSet | None] = {}
        self._given = tuple(ranges)
        for cidr in sorted(self._given, key=lambda cidr: cidr.length):  # of two that overlap, one contains the other
            if not self._ranges.overlapping(cidr):
                self._ranges.insert(cidr, None)

    def beside(self, ranges: Iterable[Cidr]) -> "Reserved":
        """Return the reservations with further ranges."""
        return Reserved((*self._given, *ranges), self.unreadable)

    def mask(self, block: Cidr) -> OrdinalSet | None:
        """Return the reserved ordinals of a block; None if no address of it is reserved."""
        if block not in self._masks:
            ordinals = None
            for cidr in self.ranges_in(block):
                ordinals = OrdinalSet(block.size) if ordinals is None else ordinals
                ordinals.add_range(block.ordinal(cidr.first), block.ordinal(cidr.last))
            self._masks[block] = ordinals
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


def read_pools(backend: Backend) -> PoolSet:
    """Read the pools. The set lists the unreadable ones with their errors."""
    entries = backend.list(ResourceQuery("IPPool"))
    pools: list[Pool] = []
    unreadable, cidrs = _undecodable("IP pool", entries.skipped), {}
    for entry in entries:
        try:
            pools.append(Pool.from_resource(entry.value))
        except ValueError as error:
            unreadable[entry.value.name] = cidrs[_canonical(str(entry.value.spec.get("cidr")))] = str(error)
    return PoolSet(pools, unreadable, cidrs)


def read_reserved(backend: Backend) -> Reserved:
    """Read the reservations. The result lists the errors of undecodable documents and of invalid entries."""
    entries = backend.list(ResourceQuery(RESERVATION))
    ranges: list[Cidr] = []
    unreadable = _undecodable("IP reservation", entries.skipped)
    for entry in entries:
        found, errors = read_entries(entry.value)
        ranges += found
        if errors:
            unreadable[entry.value.name] = f"IP reservation {entry.value.name!r}: {'; '.join(map(str, errors))}"
    return Reserved(ranges, unreadable)


def read_entries(resource: Resource) -> tuple[list[Cidr], list[FieldError]]:
    """Return the valid ranges of one reservation, and the field errors of the other entries. Host bits are ignored."""
    given = resource.spec.get("reservedCIDRs") or []
    if not isinstance(given, list):
        return [], [FieldError("spec.reservedCIDRs", given, f"is {json_kind(given)}", "give an array of CIDRs")]
    ranges, errors = [], []
    for index, text in enumerate(given):
        try:
            ranges.append(Cidr.masked(str(text).strip()))
        except ValueError:
            errors.append(
                FieldError(f"spec.reservedCIDRs[{index}]", text, "is not a CIDR", "give ADDRESS/LENGTH, or an address")
            )
    return ranges, errors


def _undecodable(noun: str, skipped: Mapping[str, str]) -> dict[str, str]:
    """Return the errors of documents that cannot be decoded, by the names of their resources."""
    return {place.rpartition("/")[2]: f"{noun} {place}: {error}" for place, error in skipped.items()}


def _canonical(name: str) -> str:
    """Return ADDRESS/LEN without host bits. Return any other text, such as a pool name, unchanged."""
    try:
        return str(Cidr.masked(name)) if "/" in name else name
    except ValueError:
        return name
