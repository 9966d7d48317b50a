"""Allocated addresses in short form."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from svc.admin.ipam_check.owners import POD, is_of_one, kind_of
from svc.controllers.stored_endpoints import EndpointRow
from svc.datastore.api import Entry
from svc.ipam.blocks import is_windows_reserved
from svc.model.ipam import Attribute, Block

UNKNOWN_OWNER = "unknown owner"  # the kind of an allocation of which another program may know more


class Held(NamedTuple):
    """One allocated address: who has it, and the time of its allocation as the block has it. `pod` is NAMESPACE/NAME."""

    address: str
    handle: str
    sequence: int | None
    kind: str
    node: str
    pod: str
    since: str


def held_in(block: Block) -> Iterator[Held]:
    """Yield the addresses of a block that a handle holds, without those that Windows sets aside."""
    cidr, sequences = block.cidr, block.ordinal_sequences
    for tag, attribute in enumerate(block.attributes or ()):
        if not attribute.handle_id or attribute.released_at or is_windows_reserved(attribute):
            continue
        kind, node, pod, since = _owner(attribute)
        for ordinal in block.ordinals.tagged(tag):
            address = str(cidr.address(ordinal))
            yield Held(address, attribute.handle_id, sequences.get(ordinal), kind, node, pod, since)


def all_held(blocks: Iterable[Entry[Block]]) -> list[Held]:
    """Return the addresses of all blocks that a handle holds."""
    return [held for entry in blocks for held in held_in(entry.value)]


def is_own(held: Held, endpoint: EndpointRow) -> bool:
    """Return whether an endpoint is that of the allocation itself, so that it ends with it."""
    same = endpoint.pod == held.pod and endpoint.node == held.node and endpoint.container
    return bool(same) and is_of_one(held.handle, [(endpoint.container,)])


def _owner(attribute: Attribute) -> tuple[str, str, str, str]:
    """Return kind, node, pod and time of an allocation."""
    owner = attribute.secondary or {}
    kind = UNKNOWN_OWNER if attribute.alternate else kind_of(owner)
    pod = f"{owner['namespace']}/{owner['pod']}" if kind == POD else ""
    return kind, owner.get("node", ""), pod, owner.get("timestamp", "")
