"""Owner attributes of an allocation: active and alternate owner.

`secondary` has the attributes of the active owner, `alternate` those of the other one, to which a virtual machine migrates.
`namespace` and `pod` among them name the owner.
"""

from collections.abc import Mapping

from svc._core.cidr import Address
from svc.datastore.api import Backend, Entry
from svc.ipam import blocks, errors
from svc.ipam.blocks import Cooldown
from svc.ipam.pools import read_pools
from svc.ipam.releasing import bare
from svc.ipam.settings import cooldown_of, read_settings
from svc.model.ipam import Attribute, Block
from svc.model.keys import BlockKey, BlockQuery
from svc.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class Owner:
    """A pod. Without a name it matches only empty attributes."""

    namespace: str = ""
    name: str = ""

    def matches(self, attributes: Mapping[str, str] | None) -> bool:
        """Return whether the attributes are this owner's."""
        if not self.name and not self.namespace:
            return not attributes
        return attributes is not None and (attributes.get("namespace"), attributes.get("pod")) == (self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name or self.namespace else "nobody"


@dataclass(frozen=True, slots=True)
class SetOwner:
    """New attributes, empty to clear them. `expected` must own the present ones; None allows any owner."""

    attributes: Mapping[str, str]
    expected: Owner | None = None


def find(backend: Backend, address: Address) -> Attribute | None:
    """Return the attributes of an address; None if it is not assigned. Raise CallerError if it is in cooldown."""
    entry = _block_of(backend, address)
    return _current(entry.value.copy(), address, cooldown_of(read_settings(backend))) if entry else None


def attributes_of(backend: Backend, address: Address) -> Attribute:
    """Return the attributes of an address. Raise CallerError if it is not assigned, or in cooldown."""
    found = find(backend, address)
    if found is None:
        raise errors.not_assigned(address)
    return found


def set_owners(
    backend: Backend, address: Address, handle: str, *, active: SetOwner | None = None, alternate: SetOwner | None = None
) -> None:
    """Change one or both owners of this address alone.

    Raise CallerError, without a change, if the address has another handle or an owner is not the expected one; PeerError if all
    attempts conflict."""
    entry, cooldown = _block_of(backend, address), cooldown_of(read_settings(backend))
    if entry is None:
        raise errors.not_assigned(address)

    def changed(stored: Block | None) -> Block | None:
        if stored is None:
            raise errors.not_assigned(address)
        block = stored.copy()
        present = _current(block, address, cooldown)
        if present is None:
            raise errors.not_assigned(address)
        if bare(present.handle_id) != bare(handle):
            raise errors.other_handle(address, present.handle_id, handle)
        wanted = replace(
            present,
            secondary=_changed(address, "active", present.secondary, active),
            alternate=_changed(address, "alternate", present.alternate, alternate),
        )
        if wanted == present:
            return stored
        blocks.set_attribute(block, block.cidr.ordinal(address), wanted)
        block.sequence += 1
        return block

    backend.update(entry.key, changed)


def _changed(address: Address, which: str, present: dict[str, str] | None, change: SetOwner | None) -> dict[str, str] | None:
    if change is None:
        return present
    if change.expected is not None and not change.expected.matches(present):
        found = Owner((present or {}).get("namespace", ""), (present or {}).get("pod", ""))
        raise errors.AddressUnavailable(
            f"the {which} owner of address {str(address)!r} is {found}",
            details=f"it should be {change.expected}: read the attributes again",
        )
    return dict(sorted(change.attributes.items())) or None


def _current(block: Block, address: Address, cooldown: Cooldown) -> Attribute | None:
    """Free expired addresses of the block, and return the attributes of this one. Raise CallerError if it is in cooldown."""
    blocks.free_expired(block, cooldown)
    attribute = blocks.allocation_of(block, address)
    if attribute is not None and attribute.released_at:
        raise errors.in_cooldown(address, attribute.released_at)
    return attribute


def _block_of(backend: Backend, address: Address) -> Entry[Block] | None:
    """Return the entry of the address's block, in a pool or orphaned."""
    pool = read_pools(backend).pool_of(address)
    if pool and (entry := backend.find(BlockKey(pool.cidr.block_of(address, pool.block_size)))):
        return entry
    return next((entry for entry in backend.list(BlockQuery(address.version)) if address in entry.value.cidr), None)
