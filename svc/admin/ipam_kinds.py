"""The kinds of address management: settings, blocks, affinities and handles."""

from typing import Final

from svc.admin import rules
from svc.admin.columns import NAME, computed, field, switch
from svc.admin.ipam_storage import SETTINGS, IpamStorage, SettingsStorage, completed_settings
from svc.admin.kind import Kind, each_alone
from svc.model.custom_resources import AFFINITY, BLOCK, CONFIG, CONFIG_NAME, HANDLE, kind_plural
from svc.model.keys import VIRTUAL, AffinityQuery, BlockQuery, HandleQuery
from svc.model.resource import Resource
from svc.names import Names

_IPAM: Final = "address management writes it; `svcctl ipam show` shows the use of addresses"


def settings(names: Names) -> Kind:
    """Return the kind of the IPAM settings."""
    return Kind(
        SETTINGS,
        "IPAM configuration",
        kind_plural(SETTINGS),
        words=("settings", *(word for word in (CONFIG[True].lower(), kind_plural(CONFIG[True])))),
        aliases=(CONFIG[True],),
        singleton=CONFIG_NAME,
        has_labels=False,
        storage=SettingsStorage(names),
        columns=(
            NAME,
            switch("STRICT AFFINITY", "strictAffinity"),
            switch("AUTO ALLOCATE", "autoAllocateBlocks"),
            field("MAX BLOCKS", "maxBlocksPerHost"),
            field("COOLDOWN", "ipCooldownSeconds"),
            field("VM PERSISTENCE", "kubeVirtVMAddressPersistence"),
        ),
        own=frozenset(rules.SETTINGS),
        texts=("kubeVirtVMAddressPersistence",),
        checker=each_alone(rules.check_settings_document),
        complete=completed_settings,
    )


def block(names: Names) -> Kind:
    """Return the kind of blocks."""
    return Kind(
        BLOCK,
        "IPAM block",
        kind_plural(BLOCK),
        words=("block", "blocks"),
        storage=IpamStorage(names, (BlockQuery(),)),
        columns=(
            NAME,
            field("CIDR", "cidr"),
            field("AFFINITY", "affinity"),
            computed("ASSIGNED", _used),
            computed("FREE", lambda block: len(block.spec["unallocated"])),
        ),
        wide=(field("CLAIMED", "affinityClaimTime"), field("SEQUENCE", "sequenceNumber")),
        has_labels=False,
        read_only=_IPAM,
    )


def affinity(names: Names) -> Kind:
    """Return the kind of affinities."""
    return Kind(
        AFFINITY,
        "block affinity",
        kind_plural(AFFINITY),
        words=("affinity", "affinities"),
        storage=IpamStorage(names, (AffinityQuery(), AffinityQuery(kind=VIRTUAL))),
        columns=(NAME, field("CIDR", "cidr"), field("NODE", "node"), field("TYPE", "type"), field("STATE", "state")),
        read_only=_IPAM,
    )


def handle(names: Names) -> Kind:
    """Return the kind of handles."""
    return Kind(
        HANDLE,
        "IPAM handle",
        kind_plural(HANDLE),
        words=("handle", "handles"),
        storage=IpamStorage(names, (HandleQuery(),)),
        columns=(
            NAME,
            computed("ADDRESSES", lambda handle: sum(handle.spec["block"].values())),
            computed("BLOCKS", _blocks_of_handle),
        ),
        wide=(field("HANDLE", "handleID"),),
        has_labels=False,
        read_only=_IPAM,
    )


def _blocks_of_handle(resource: Resource) -> list[str]:
    return [f"{cidr} ({number})" for cidr, number in sorted(resource.spec["block"].items())]


def _used(resource: Resource) -> int:
    return sum(each is not None for each in resource.spec["allocations"])
