"""Which pools a request may take addresses from.

Named pools are used as they are: in the order asked for, whatever their selectors say. Without names, a node takes
addresses from every enabled, automatic pool whose nodeSelector selects it, in name order (specification, rules R1 and
R2).
"""

from collections.abc import Mapping, Sequence

from svc._core.cidr import Address, Cidr, CidrIndex
from svc.ipam import errors
from svc.model.pool import AUTOMATIC, WORKLOAD, Pool

_NONE: Mapping[str, str] = {}


class PoolSet:
    """The usable pools of a datastore, by name, by CIDR and by address."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = sorted((pool for pool in pools if pool.usable), key=lambda pool: pool.name)
        self._by_text: dict[str, Pool] = {}
        self._index: CidrIndex[Pool] = CidrIndex()
        for pool in self._pools:
            self._by_text[str(pool.cidr)] = pool
            self._by_text[pool.name] = pool
            self._index.insert(pool.cidr, pool)

    def block_of(self, address: Address) -> Cidr:
        """The block that an address belongs in. SvcError when no pool for workloads has it."""
        pool = self._index.match(address)
        if pool is None:
            raise errors.outside_pools(address)
        if WORKLOAD not in pool.allowed_uses:
            raise errors.pools_of_other_use([pool])
        return pool.cidr.block_of(address, pool.block_size)

    def named(self, names: Sequence[str], version: int) -> list[Pool]:
        """SvcError when one does not exist or is of the other family, or none is for workloads."""
        pools = [self._named(name, version) for name in names]
        fit = [pool for pool in pools if WORKLOAD in pool.allowed_uses]
        if not fit:
            raise errors.pools_of_other_use(pools)
        return fit

    def selected(self, version: int, node_labels: Mapping[str, str], namespace_labels: Mapping[str, str] = _NONE) -> list[Pool]:
        """Workloads that are in no namespace get no address of a pool that selects namespaces by label."""
        return [
            pool
            for pool in self._pools
            if pool.cidr.version == version
            and pool.assignment_mode == AUTOMATIC
            and WORKLOAD in pool.allowed_uses
            and pool.node_selector.matches(node_labels)
            and pool.namespace_selector.matches(namespace_labels)
        ]

    def _named(self, name: str, version: int) -> Pool:
        pool = self._by_text.get(name) or self._by_text.get(_canonical(name))
        if pool is None:
            raise errors.pool_missing(name)
        if pool.cidr.version != version:
            raise errors.pool_wrong_family(name, version)
        return pool


def _canonical(name: str) -> str:
    try:
        return str(Cidr(name))
    except ValueError:
        return name
