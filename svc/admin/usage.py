"""Use of pools and blocks: how many addresses are assigned, and which of them in blocks of other nodes."""

from collections.abc import Iterator, Sequence

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.datastore.expired_pages import repeated
from svc.ipam import blocks, errors
from svc.ipam.blocks import Cooldown
from svc.ipam.cache import read_blocks
from svc.ipam.pools import Reserved, read_pools, read_reserved
from svc.ipam.settings import cooldown_of, read_settings
from svc.model.ipam import Attribute, Block
from svc.model.keys import Host
from svc.model.pool import Pool
from svc.values import dataclass

ORPHANS = "orphaned blocks"
_EVERYTHING = (Cidr("0.0.0.0/0"), Cidr("::/0"))
_VM = "vmi-name"  # attribute of a virtual machine's address


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of the addresses of a block, of a pool, or of the blocks that are in no pool (`ORPHANS`).

    Those in cooldown are in use; `available` are free and not reserved. Those of a pool include addresses in no block yet."""

    cidr: Cidr
    capacity: int
    reserved: int
    in_use: int
    available: int
    name: str = ""  # of a pool
    affinity: str | None = None  # of a block
    blocks: "tuple[Usage, ...]" = ()  # of a pool


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An address in a block without its node's affinity. `holder` is NAMESPACE/NAME, or the handle if it has no name."""

    address: Address
    node: str
    block: Cidr
    owner: str | None
    kind: str  # `pod`, `vmi` or another word
    holder: str


def usage(backend: Backend, names: Sequence[str] = ()) -> tuple[Usage, ...]:
    """Return a row for each pool in name order, then one for the orphaned blocks of each family that has any.

    With `names`, or CIDRs, return one for each of those pools. Raise CallerError if such a pool does not exist."""
    pools, reserved = read_pools(backend).all, read_reserved(backend)
    cooldown = cooldown_of(read_settings(backend))
    present = repeated(lambda: _present(backend, reserved, cooldown))
    rows = [_of_pool(pool, [block for block in present if block.cidr in pool.cidr], reserved) for pool in pools]
    if not names:
        return (*rows, *_orphans([block for block in present if not any(block.cidr in pool.cidr for pool in pools)]))
    by_text = {text: row for row in rows for text in (row.name, str(row.cidr))}
    for name in names:
        if name not in by_text:
            raise errors.pool_missing(name)
    return tuple(by_text[name] for name in names)


def read_borrowed(backend: Backend) -> tuple[list[Borrowed], int]:
    """Return all borrowed addresses, and how many allocations do not name their node."""
    return repeated(lambda: _read_borrowed(backend))


def _read_borrowed(backend: Backend) -> tuple[list[Borrowed], int]:
    found, unknown = [], 0
    for block in read_blocks(backend):
        host = Host.of(block.affinity)
        owner = host.name if host else None
        for attribute, ordinals in _held(block):
            node = (attribute.secondary or {}).get("node")
            if node is None:
                unknown += len(ordinals)
            elif node != owner:
                found += [_borrowed(block, block.cidr.address(ordinal), node, attribute) for ordinal in ordinals]
    return found, unknown


def _present(backend: Backend, reserved: Reserved, cooldown: Cooldown) -> list[Usage]:
    found = []
    for block in read_blocks(backend):
        blocks.free_expired(block, cooldown)
        ordinals, reserved_here = block.ordinals, reserved.count(block.cidr)
        available = ordinals.available(reserved.mask(block.cidr))
        found.append(Usage(block.cidr, ordinals.size, reserved_here, ordinals.used, available, affinity=block.affinity))
    return found


def _of_pool(pool: Pool, present: Sequence[Usage], reserved: Reserved) -> Usage:
    in_blocks, reserved_in_blocks, in_use, available = _sums(present)
    reserved_here = reserved.count(pool.cidr)
    available += (pool.cidr.size - in_blocks) - (reserved_here - reserved_in_blocks)  # those in no block yet
    return Usage(pool.cidr, pool.cidr.size, reserved_here, in_use, available, pool.name, blocks=tuple(present))


def _orphans(orphaned: Sequence[Usage]) -> Iterator[Usage]:
    """Yield a row for each family. Its capacity is that of the blocks, because no pool could have more."""
    for everything in _EVERYTHING:
        found = tuple(block for block in orphaned if block.cidr in everything)
        if found:
            yield Usage(everything, *_sums(found), ORPHANS, blocks=found)


def _sums(found: Sequence[Usage]) -> tuple[int, int, int, int]:
    return (
        sum(block.capacity for block in found),
        sum(block.reserved for block in found),
        sum(block.in_use for block in found),
        sum(block.available for block in found),
    )


def _held(block: Block) -> Iterator[tuple[Attribute, list[int]]]:
    """Yield the ordinals of each attribute, but for those in cooldown and those reserved for Windows."""
    for tag, attribute in enumerate(block.attributes or ()):
        if not attribute.released_at and not blocks.is_windows_reserved(attribute):
            yield attribute, block.ordinals.tagged(tag)


def _borrowed(block: Block, address: Address, node: str, attribute: Attribute) -> Borrowed:
    known = attribute.secondary or {}
    kind, name = next(((kind, known[key]) for kind, key in (("vmi", _VM), ("pod", "pod")) if known.get(key)), ("", ""))
    holder = "/".join(filter(None, (known.get("namespace"), name))) if name else attribute.handle_id or ""
    return Borrowed(address, node, block.cidr, block.affinity, kind or known.get("type", ""), holder)
