"""Pools and blocks as a request for addresses meets them, for explanations. Nothing is changed."""

from collections.abc import Sequence

from svc._core.cidr import Cidr
from svc.datastore.api import Backend, NotFound
from svc.ipam.assigning import rejections
from svc.ipam.cache import IpamCache
from svc.ipam.plan import Plan
from svc.ipam.requests import Assign
from svc.ipam.settings import effective_limit
from svc.model.errors import SvcError
from svc.model.ipam import IpamConfig
from svc.model.keys import Host
from svc.model.pool import Pool
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block of the node. Addresses in `cooldown` are not free. `problem` says why no address comes from it; mostly empty."""

    cidr: Cidr
    used: int = 0
    free: int = 0
    reserved: int = 0
    cooldown: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool and the verdict on it: empty if it serves the request, else the reason. `blocks` are those of the node.

    `claimable` is the next block that the node would claim, if any. `to_borrow` counts the blocks that it could borrow from.
    """

    name: str
    cidr: Cidr
    verdict: str
    blocks: tuple[BlockView, ...] = ()
    claimable: Cidr | None = None
    to_borrow: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """The pools of a family in the order in which they are tried, then the rejected ones; the settings, and the block limit."""

    pools: tuple[PoolView, ...]
    unreadable: tuple[str, ...]
    settings: IpamConfig
    max_blocks: int


def preview(backend: Backend, host: Host, version: int, request: Assign) -> Preview:
    """Return what a request for an address of this family meets. Raise SvcError if the datastore or a named pool fails."""
    plan = Plan(backend, IpamCache(backend, host), host, {})
    named = request.pools.get(version, ())
    verdicts = rejections(plan, version, request)
    if named:
        serving = plan.cache.pools().named(named, version, request.use)
        rejected = [(pool, reason or "is not asked for") for pool, reason in verdicts if pool not in serving]
    else:
        serving = [pool for pool, reason in verdicts if not reason]
        rejected = [(pool, reason) for pool, reason in verdicts if reason]
    views = [_pool_view(plan, pool) for pool in serving]
    views += [PoolView(pool.name, pool.cidr, reason) for pool, reason in rejected]
    limit = effective_limit(plan.settings, request.max_blocks, shared=backend.requires_node)
    return Preview(tuple(views), plan.cache.errors(), plan.settings, limit)


def _pool_view(plan: Plan, pool: Pool) -> PoolView:
    own = [cidr for cidr in plan.cache.own_blocks(pool.cidr.version) if cidr in pool.cidr]
    index = plan.index(pool.cidr.version)
    views: Sequence[BlockView] = [_block_view(plan, cidr) for cidr in own]
    return PoolView(pool.name, pool.cidr, "", tuple(views), index.next_free_range(pool), len(index.borrowable(pool)))


def _block_view(plan: Plan, cidr: Cidr) -> BlockView:
    try:
        block = plan.block(cidr)
    except NotFound:
        return BlockView(cidr, problem="its claim is incomplete: an ADD completes it")
    except SvcError as failure:
        return BlockView(cidr, problem=failure.msg)
    mask = plan.reserved.mask(cidr)
    attributes = block.attributes or ()
    cooldown = sum(len(block.ordinals.tagged(tag)) for tag, each in enumerate(attributes) if each.released_at)
    free = block.ordinals.available(mask)
    return BlockView(cidr, block.ordinals.used - cooldown, free, plan.reserved.count(cidr), cooldown)
