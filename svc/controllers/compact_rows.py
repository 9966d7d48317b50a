"""Entries that share equal texts and values, for tables of tens of thousands. Their readers must not modify them."""

from functools import lru_cache
from sys import intern

from svc.datastore.api import Entry
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import HandleKey
from svc.values import replace

_COMMON = ("node", "namespace", "type")  # attributes of owners with few different texts
_SHARED = 8192  # different values of handles that are kept for sharing: one for each block


def compact_block(entry: Entry[Block]) -> Entry[Block]:
    """Return a block whose owners share the texts that occur in many of them."""
    attributes = entry.value.attributes
    return replace(entry, value=replace(entry.value, attributes=attributes and [_compact(each) for each in attributes]))


def compact_handle(entry: Entry[Handle]) -> Entry[Handle]:
    """Return a handle that shares its value with the other handles of its block. It needs half of the memory."""
    key, value = entry.key, entry.value
    assert isinstance(key, HandleKey)
    if len(value.blocks) == 1 and not value.deleted and value.extra is None:
        ((cidr, count),) = value.blocks.items()
        value = _of_one_block(cidr, count)
    return Entry(HandleKey(intern(key.handle)), value, entry.revision)


def _compact(attribute: Attribute) -> Attribute:
    handle, secondary = attribute.handle_id, attribute.secondary
    shared = secondary and {intern(name): intern(text) if name in _COMMON else text for name, text in secondary.items()}
    return replace(attribute, handle_id=handle and intern(handle), secondary=shared)


@lru_cache(_SHARED)
def _of_one_block(cidr: str, count: int) -> Handle:
    return Handle({cidr: count})
