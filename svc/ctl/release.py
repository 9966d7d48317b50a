"""Giving address blocks back, whoever owns them, and who still uses them."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone

from svc._core.cidr import Cidr
from svc.ctl.retry import retry
from svc.datastore.api import Backend, NotFound
from svc.ipam import giveup
from svc.ipam.blocks import Rest, collect, count_set_aside
from svc.ipam.claim import ClaimLost
from svc.model.ipam import Block
from svc.model.keys import AffinityKey, AffinityQuery


def affinities(backend: Backend) -> Iterator[AffinityKey]:
    """Of hosts and of virtual ones."""
    for kind in ("host", "virtual"):
        for entry in backend.list(AffinityQuery(kind=kind)):
            assert isinstance(entry.key, AffinityKey)
            yield entry.key


def count_used(block: Block) -> int:
    """Addresses that somebody holds. Those that only cool down are nobody's, and free in the block afterwards; those that
    Windows sets aside go with the block."""
    collect(block, _over())
    return block.ordinals.used - count_set_aside(block)


def count_of_node(block: Block, node: str) -> int:
    """Addresses that workloads of this node hold, whoever owns the block."""
    attributes = enumerate(block.attributes or ())
    held = [tag for tag, attribute in attributes if (attribute.secondary or {}).get("node") == node]
    return sum(len(block.ordinals.tagged(tag)) for tag in held)


def give_up(backend: Backend, key: AffinityKey) -> None:
    """Ends a claim: an unused block goes with it, a used one stays, as nobody's. StoreError; PeerError when others keep
    changing it."""
    with suppress(ClaimLost):  # it was another's already
        giveup.give_up(backend, key, _over(), only_empty=False)


def drop_unclaimed(backend: Backend, cidr: Cidr) -> None:
    """Removes a block that nobody claims, unless it is in use. StoreError."""
    with suppress(ClaimLost, giveup.NotEmpty):
        retry(f"block {cidr}", lambda: _drop(backend, cidr))


def _drop(backend: Backend, cidr: Cidr) -> None:
    with suppress(NotFound):
        giveup.drop_abandoned(backend, cidr, _over())


def _over() -> Rest:
    """Where a pool goes, nothing needs to rest any more."""
    return Rest(0, datetime.now(timezone.utc))
