"""What svcctl tells of address management: for people, and the same for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from svc._core.cidr import Address
from svc.ctl.context import table
from svc.ipam.borrowed import Borrowed
from svc.ipam.usage import ORPHANS, BlockUsage, PoolUsage
from svc.model.ipam import Attribute, IpamConfig

Json = dict[str, Any]
Answer = tuple[list[Json], str]
"""Documents, and the text that says the same."""

PROPERTIES = {
    "strict_affinity": "strictAffinity",
    "auto_allocate_blocks": "autoAllocateBlocks",
    "max_blocks_per_host": "maxBlocksPerHost",
    "vm_address_persistence": "kubeVirtVMAddressPersistence",
    "cooldown_seconds": "ipCooldownSeconds",
}  # fields of the settings, and what users call them
_UNSET = {"vm_address_persistence": "Enabled"}  # where nobody has said anything

_USAGE = ("GROUPING", "NAME", "CIDR", "NODE", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE")
_LARGEST_WHOLE = 2**64
_BORROWED = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")


def tell_usage(pools: Sequence[PoolUsage], unreadable: Mapping[str, str], *, with_blocks: bool) -> Answer:
    """Tell how full the pools are, and the faults of those that cannot be read. Blocks that are in no pool come only with
    those of pools."""
    shown = [pool for pool in pools if with_blocks or pool.name != ORPHANS]
    rows = []
    for pool in shown:
        rows += [_row("IP Pool", pool.name, "", pool)] if pool.name != ORPHANS else []
        rows += [_row("Block", "", _node_of(block), block) for block in pool.blocks if with_blocks]
    documents = [_document(pool, with_blocks) for pool in shown]
    documents += [{"name": name, "fault": fault} for name, fault in unreadable.items()]
    return documents, "\n".join([table(_USAGE, rows, numbers=4), *(f"Not counted: {fault}" for fault in unreadable.values())])


def tell_borrowed(found: Sequence[Borrowed], unknown: int) -> Answer:
    """Whose addresses are whose; `unknown` allocations name no node."""
    rows = [[str(one.address), one.node, str(one.block), one.owner or "", one.kind, one.holder] for one in found]
    note = f"\nNot told: {unknown} allocations that name no node" if unknown else ""
    documents = [
        {
            "ip": str(one.address),
            "node": one.node,
            "block": str(one.block),
            "affinity": one.owner,
            "type": one.kind,
            "allocatedTo": one.holder,
        }
        for one in found
    ]
    return documents, table(_BORROWED, rows) + note


def tell_holder(address: Address, found: Attribute | None) -> Answer:
    """Who has the address; None where nobody has it."""
    if found is None:
        return [{"ip": str(address), "inUse": False}], f"{address} is not assigned"
    owners = {"Active": found.secondary or {}, "Alternate": found.alternate or {}}
    lines = [f"IP {address} is in use", f"Handle ID: {found.handle_id or '<none>'}"]
    lines += [line for which, owner in owners.items() if owner or which == "Active" for line in _owner_lines(which, owner)]
    document = {"ip": str(address), "inUse": True, "handle": found.handle_id}
    return [document | {"activeOwner": owners["Active"], "alternateOwner": owners["Alternate"]}], "\n".join(lines)


def tell_settings(settings: IpamConfig) -> Answer:
    """All of them, as they count."""
    values = {name: value_of(settings, field) for field, name in PROPERTIES.items()}
    return [values], table(("PROPERTY", "VALUE"), [[name, text_of(value)] for name, value in values.items()])


def value_of(settings: IpamConfig, field: str) -> bool | int | str:
    """Of one setting."""
    value: bool | int | str = getattr(settings, field)
    return value or _UNSET.get(field, value)


def text_of(value: bool | int | str) -> str:
    """As it stands in JSON, and on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(grouping: str, name: str, node: str, usage: PoolUsage | BlockUsage) -> list[str]:
    parts = (usage.in_use, usage.reserved, usage.available)
    counts = [f"{_count(part)} ({100 * part / usage.capacity:.0f}%)" for part in parts]
    return [grouping, name, str(usage.cidr), node, _count(usage.capacity), *counts]


def _count(number: int) -> str:
    """Larger ones would make the table wider than a screen."""
    return str(number) if number <= _LARGEST_WHOLE else f"{number:.5g}"


def _node_of(block: BlockUsage) -> str:
    return (block.affinity or "").removeprefix("host:")


def _document(pool: PoolUsage, with_blocks: bool) -> Json:
    blocks = [{"cidr": str(block.cidr), "affinity": block.affinity} | _counts(block) for block in pool.blocks]
    return {"name": pool.name, "cidr": str(pool.cidr)} | _counts(pool) | ({"blocks": blocks} if with_blocks else {})


def _counts(usage: PoolUsage | BlockUsage) -> Json:
    return {"total": usage.capacity, "inUse": usage.in_use, "reserved": usage.reserved, "free": usage.available}


def _owner_lines(which: str, owner: Mapping[str, str]) -> list[str]:
    if not owner:
        return [f"{which} owner: none"]
    return [f"{which} owner:", *(f"  {name}: {value}" for name, value in sorted(owner.items()))]
