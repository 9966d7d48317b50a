"""Allocated addresses in short form, and the stored endpoints that have them."""

from collections.abc import Iterable, Iterator
from sys import intern
from typing import NamedTuple

from svc.admin.ipam_check.owners import POD, is_of_one, kind_of
from svc.datastore.api import Entry
from svc.ipam.blocks import is_windows_reserved
from svc.model.ipam import Attribute, Block
from svc.model.keys import ResourceKey
from svc.model.mapped import allocated_form
from svc.model.resource import Resource

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


class EndpointRow(NamedTuple):
    """A stored endpoint. `pod` is NAMESPACE/NAME, empty for a bare container; `is_unreadable` is whether fields are damaged."""

    pod: str
    node: str
    container: str
    addresses: tuple[str, ...]
    is_unreadable: bool = False


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


def read_endpoint(entry: Entry[Resource]) -> EndpointRow:
    """Return the row of an endpoint. One whose fields cannot be read stands for anything of its pod."""
    assert isinstance(entry.key, ResourceKey)
    spec = entry.value.spec
    pod, node, container = (spec.get(name) or "" for name in ("pod", "node", "containerID"))
    owner = f"{entry.key.namespace}/{pod}" if pod else ""
    try:
        networks = spec.get("ipNetworks") or ()
        addresses = tuple(str(allocated_form(text)) for text in networks)
        return EndpointRow(owner, intern(node), container, addresses, not isinstance(container, str))
    except (TypeError, ValueError, AttributeError):
        return EndpointRow(owner, str(node), str(container), (), is_unreadable=True)


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
