"""Addresses that nodes have in blocks of others."""

from collections.abc import Iterator

from svc._core.cidr import Address, Cidr
from svc.datastore.api import Backend
from svc.ipam.blocks import is_set_aside
from svc.ipam.host import Host
from svc.ipam.view import read_blocks
from svc.model.ipam import Attribute, Block
from svc.values import dataclass

_VM = "vmi-name"  # of the attributes that tell of a virtual machine


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An address whose node does not own its block. `kind` is `pod`, `vmi` or another word, `holder` NAMESPACE/NAME, or the
    handle of what has no name."""

    address: Address
    node: str
    block: Cidr
    owner: str | None
    kind: str
    holder: str


def read_borrowed(backend: Backend) -> tuple[list[Borrowed], int]:
    """All of them; and how many allocations do not say on which node they are."""
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


def _held(block: Block) -> Iterator[tuple[Attribute, list[int]]]:
    """Who holds addresses of it, and which; nobody holds what rests, nor what a node's system needs."""
    for tag, attribute in enumerate(block.attributes or ()):
        if not attribute.released_at and not is_set_aside(attribute):
            yield attribute, block.ordinals.tagged(tag)


def _borrowed(block: Block, address: Address, node: str, attribute: Attribute) -> Borrowed:
    said = attribute.secondary or {}
    kind, name = next(((kind, said[key]) for kind, key in (("vmi", _VM), ("pod", "pod")) if said.get(key)), ("", ""))
    holder = "/".join(filter(None, (said.get("namespace"), name))) if name else attribute.handle_id or ""
    return Borrowed(address, node, block.cidr, block.affinity, kind or said.get("type", ""), holder)
