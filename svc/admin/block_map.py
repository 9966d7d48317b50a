"""A map of a pool: one cell for each block that fits into it, as text and as SVG."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import islice
from textwrap import wrap
from typing import Final

from svc._core.cidr import Cidr
from svc.admin.resources import POOL, require
from svc.datastore.api import Backend
from svc.ipam import blocks
from svc.ipam.errors import shortened
from svc.ipam.pools import Reserved, read_reserved
from svc.model.errors import CallerError, Code
from svc.model.ipam import Attribute, Block
from svc.model.keys import NODE, BlockQuery, Host
from svc.model.pool import Pool
from svc.values import dataclass

NONE, OWN, FOREIGN, UNCLAIMED = ".", "o", "f", "u"  # no block; of the node; of another host; without an affinity
OTHER_SIZE, UNREADABLE = "x", "?"  # blocks of another size; a document that cannot be decoded
LEGEND: Final = (
    "o own, f of another host, u without an affinity, . no block; a capital letter: other nodes have borrowed from it\n"
    "0 to 8: eighths in use; c: has addresses in cooldown, r: has reserved addresses, *: both"
)
LEGEND_OTHERS: Final = "x blocks of another size than the pool's, ? a block that cannot be read: see `svcctl ipam check`"
MAX_CELLS: Final = 1 << 14  # that are there only because addresses are reserved, or of one block of another size
_CELL: Final = 3  # characters
_SIDE, _GAP = 14, 2  # pixels of a cell in the SVG
_COLOURS: Final = {
    NONE: "#eeeeee",
    OWN: "#2c7fb8",
    FOREIGN: "#d95f0e",
    UNCLAIMED: "#999999",
    OTHER_SIZE: "#7b3294",
    UNREADABLE: "#d7191c",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A block of the pool. `used` counts addresses that are not free, those in `cooldown` included."""

    cidr: Cidr
    kind: str = NONE
    host: str = ""  # the affinity of the block
    used: int = 0
    cooldown: int = 0
    reserved: int = 0
    borrowed: int = 0
    problem: str = ""  # of a cell without a block that svc uses

    @property
    def eighths(self) -> int:
        """The share of addresses in use, rounded up, so that only an unused block has 0 and only a full one has 8."""
        size = self.cidr.size
        return 0 if not self.used else 8 if self.used == size else max(1, min(7, -(-8 * self.used // size)))

    @property
    def text(self) -> str:
        mark = "*" if self.cooldown and self.reserved else "c" if self.cooldown else "r" if self.reserved else ""
        if self.kind == NONE:
            return f"..{mark or '.'}"
        if self.kind == UNREADABLE:
            return f"{UNREADABLE}{UNREADABLE}{mark or '-'}"
        return f"{self.kind.upper() if self.borrowed else self.kind}{self.eighths}{mark or '-'}"

    @property
    def title(self) -> str:
        if self.kind == NONE:
            return f"{self.cidr}: no block, {self.reserved} reserved"
        if self.kind == UNREADABLE:
            return f"{self.cidr}: {self.problem}, {self.reserved} reserved"
        counts = f"{self.used} of {self.cidr.size} in use, {self.cooldown} in cooldown, {self.reserved} reserved"
        return f"{self.cidr} ({self.problem or self.host or 'no affinity'}): {counts}, {self.borrowed} borrowed"


@dataclass(frozen=True, slots=True)
class BlockMap:
    """The cells of a pool that have a block or reserved addresses, by number in the order of addresses. `count` is of all.

    `left_out` has the reserved ranges whose blocks have no cell, because they are too many."""

    pool: Pool
    node: str
    cells: dict[int, Cell]
    count: int
    left_out: tuple[Cidr, ...] = ()

    @property
    def note(self) -> str:
        """Say which parts of the pool the cells do not show; empty if none."""
        return (
            f"not shown, but reserved: all of {', '.join(shortened([str(cidr) for cidr in self.left_out]))}"
            if self.left_out
            else ""
        )

    def cell(self, number: int) -> Cell:
        return self.cells.get(number) or Cell(self.pool.cidr.block(number, self.pool.block_size))

    def rows(self, width: int) -> Iterator[tuple[int, range]]:
        """Yield the rows of `width` cells that have a block or a reservation; for others, ranges of several rows at once."""
        wanted = sorted({number // width for number in self.cells})
        expected, last = 0, -(-self.count // width)
        for row in [*wanted, last]:
            if row > expected:
                yield expected, range(0)
            if row < last:
                yield row, range(row * width, min(self.count, (row + 1) * width))
            expected = row + 1


def read_map(backend: Backend, name: str, node: str = "") -> BlockMap:
    """Return the map of a pool; `node` is the one whose blocks are its own. Raise CallerError if the pool is not usable."""
    try:
        pool = Pool.from_resource(require(backend, POOL, name).value)
    except ValueError as error:
        raise CallerError(f"IP pool {name!r} cannot be read: {error}", details="put it right first", code=Code.POOL) from None
    count = pool.cidr.block_count(pool.block_size)
    reserved = read_reserved(backend)
    entries = backend.list(BlockQuery(pool.cidr.version))
    found = [entry.value for entry in entries if entry.value.cidr.overlaps(pool.cidr)]
    cells = {_number(pool, block.cidr): _cell(block, reserved, node) for block in found if block.cidr.length == pool.block_size}
    _add_other_sizes(cells, pool, reserved, [block for block in found if block.cidr.length != pool.block_size])
    _add_unreadable(cells, pool, reserved, entries.skipped)
    shown, left_out = _reserved_blocks(pool, reserved)
    for cidr in shown:
        cells.setdefault(_number(pool, cidr), Cell(cidr, reserved=reserved.count(cidr)))
    return BlockMap(pool, node, cells, count, tuple(left_out))


def _number(pool: Pool, cidr: Cidr) -> int:
    return pool.cidr.ordinal(cidr.first) // cidr.size


def _add_other_sizes(cells: dict[int, Cell], pool: Pool, reserved: Reserved, found: Sequence[Block]) -> None:
    """Add cells for blocks that have another size than those of the pool, and are not used for new addresses.

    A large block has at most MAX_CELLS cells, and a cell with a block of the pool's size stays as it is."""
    inside: dict[Cidr, list[Block]] = {}
    for block in found:
        for cidr in islice(_blocks_of(pool, block.cidr), MAX_CELLS):
            inside.setdefault(cidr, []).append(block)
    for cidr, several in inside.items():
        allocations = [each for block in several for each in _in_cell(block, cidr)]
        listed = ", ".join(str(block.cidr) for block in several)
        cell = Cell(
            cidr=cidr,
            kind=OTHER_SIZE,
            used=len(allocations),
            cooldown=sum(bool(each.released_at) for each in allocations),
            reserved=reserved.count(cidr),
            problem=f"block{'s' if len(several) > 1 else ''} of another size: {listed}",
        )
        cells.setdefault(_number(pool, cidr), cell)


def _in_cell(block: Block, cell: Cidr) -> list[Attribute]:
    """Return the attributes of the allocations of a block in the range of a cell."""
    return [attribute for attribute, address in blocks.allocations(block) if address in cell]


def _add_unreadable(cells: dict[int, Cell], pool: Pool, reserved: Reserved, skipped: Mapping[str, str]) -> None:
    """Add cells for documents that cannot be decoded; their paths name the blocks."""
    for place in skipped:
        block = _cidr_of(place)
        if block is not None and block.overlaps(pool.cidr):
            for cidr in islice(_blocks_of(pool, block), MAX_CELLS):
                cell = Cell(cidr, UNREADABLE, reserved=reserved.count(cidr), problem=f"block {block} cannot be read")
                cells.setdefault(_number(pool, cidr), cell)


def _cidr_of(place: str) -> Cidr | None:
    """Return the block that a path in any datastore names: `10.65.0.0-26`, or `10-65-0-0-26` in the Kubernetes API."""
    name, _, length = place.rpartition("/")[2].rpartition("-")
    for separator in ".:":
        with suppress(ValueError):
            return Cidr(f"{name.replace('-', separator)}/{length}")
    return None


def _blocks_of(pool: Pool, cidr: Cidr) -> Iterator[Cidr]:
    """Yield the blocks of the pool's size that a range overlaps, in the pool."""
    inner = pool.cidr if pool.cidr in cidr else cidr
    if inner.length > pool.block_size:
        yield pool.cidr.block_of(inner.first, pool.block_size)
    else:
        yield from (inner.block(number, pool.block_size) for number in range(inner.block_count(pool.block_size)))


def _reserved_blocks(pool: Pool, reserved: Reserved) -> tuple[list[Cidr], list[Cidr]]:
    """Return the blocks with reserved addresses, at most MAX_CELLS, and the ranges that have more blocks than are left."""
    shown: list[Cidr] = []
    left_out: list[Cidr] = []
    for cidr in reserved.ranges_in(pool.cidr):
        count = cidr.block_count(pool.block_size) if cidr.length <= pool.block_size else 1
        if count > MAX_CELLS - len(shown):
            left_out.append(cidr)
        else:
            shown += _blocks_of(pool, cidr)
    return shown, left_out


def _cell(block: Block, reserved: Reserved, node: str) -> Cell:
    host = Host.of(block.affinity)
    is_own = host is not None and (host.kind, host.name) == (NODE, node)
    cooldown = borrowed = 0
    for attribute, _ in blocks.allocations(block):
        user = (attribute.secondary or {}).get("node")
        cooldown += bool(attribute.released_at)
        borrowed += user is not None and host is not None and user != host.name
    return Cell(
        cidr=block.cidr,
        kind=UNCLAIMED if host is None else OWN if is_own else FOREIGN,
        host=block.affinity or "",
        used=block.ordinals.used,
        cooldown=cooldown,
        reserved=reserved.count(block.cidr),
        borrowed=borrowed,
    )


def text_lines(found: BlockMap, columns: int) -> Iterator[str]:
    """Yield the lines of the map for a terminal of this width. Each row begins with its first block."""
    label = max(len(str(found.cell(number).cidr)) for number in (0, found.count - 1))
    width = max(1, (columns - label - 1) // (_CELL + 1))
    width = 1 << (width.bit_length() - 1)
    yield from wrap(f"IP pool {found.pool.name} {found.pool.cidr}: {found.count} blocks of /{found.pool.block_size}", columns)
    for row, numbers in found.rows(width):
        if numbers:
            cells = [found.cell(number) for number in numbers]
            yield f"{str(cells[0].cidr).ljust(label)} {' '.join(cell.text for cell in cells)}"
        else:
            yield f"{str(found.cell(row * width).cidr).ljust(label)} ... no blocks"
    has_others = any(cell.problem for cell in found.cells.values())
    legend = [*LEGEND.splitlines(), *([LEGEND_OTHERS] if has_others else []), found.note]
    yield from (part for line in legend for part in wrap(line, columns))


def svg(found: BlockMap, width: int = 64) -> str:
    """Return the map as SVG. Each cell has a tool tip; its filled part is the share of addresses in use."""
    rows = list(found.rows(width))
    step = _SIDE + _GAP
    parts = [part for line, (_, numbers) in enumerate(rows) for part in _svg_row(found, line * step, numbers)]
    if found.note:
        parts.append(f'<text x="0" y="{(len(rows) + 1) * step - 4}">{escape(found.note)}</text>\n')
    size = f'width="{width * step}" height="{max(1, len(rows) + bool(found.note)) * step}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="8">\n{"".join(parts)}</svg>\n'


def _svg_row(found: BlockMap, y: int, numbers: Sequence[int]) -> Iterator[str]:
    for column, number in enumerate(numbers):
        cell, x = found.cell(number), column * (_SIDE + _GAP)
        filled = _SIDE * cell.eighths // 8
        colour = _COLOURS[cell.kind]
        stroke = ' stroke="#000000"' if cell.borrowed else ""
        yield (
            f'<g><title>{escape(cell.title)}</title><rect x="{x}" y="{y}" width="{_SIDE}" height="{_SIDE}" '
            f'fill="{colour}" fill-opacity="0.25"{stroke}/><rect x="{x}" y="{y + _SIDE - filled}" width="{_SIDE}" '
            f'height="{filled}" fill="{colour}"/><text x="{x + 1}" y="{y + _SIDE - 4}">{cell.text}</text></g>\n'
        )
