"""Which pools a request may take addresses from.

Named pools are used as they are: in the order asked for, whatever their selectors say. Without names, a node takes
addresses from every enabled, automatic pool whose nodeSelector selects it and whose namespaceSelector selects the
namespace, in name order (specification, rules R1 and R2).
"""

from collections.abc import Mapping, Sequence

from svc._core.cidr import Address, Cidr, CidrIndex
from svc.ipam import errors
from svc.model.pool import AUTOMATIC, WORKLOAD, Pool

_NONE: Mapping[str, str] = {}


class PoolSet:
    """The pools of a datastore: the usable ones by name, by CIDR and by address, all of them by address.

    `unreadable` tells of those that cannot be understood, by name."""

    def __init__(self, pools: Sequence[Pool], unreadable: Mapping[str, str] = _NONE) -> None:
        self.all = sorted(pools, key=lambda pool: pool.name)
        self.unreadable = unreadable
        self._by_text: dict[str, Pool] = {}
        self._usable: CidrIndex[Pool] = CidrIndex()
        self._known: CidrIndex[Pool] = CidrIndex()
        for pool in self.all:
            self._known.insert(pool.cidr, pool)
            if pool.usable:
                self._by_text[str(pool.cidr)] = pool
                self._by_text[pool.name] = pool
                self._usable.insert(pool.cidr, pool)

    def block_of(self, address: Address, use: str = WORKLOAD) -> Cidr:
        """The block that an address belongs in. SvcError when no usable pool for this use has it."""
        pool = self._usable.match(address)
        if pool is None:
            raise errors.outside_pools(address, [*self.unreadable.values()])
        if use not in pool.allowed_uses:
            raise errors.pools_of_other_use([pool], use)
        return pool.cidr.block_of(address, pool.block_size)

    def pool_of(self, address: Address) -> Pool | None:
        """The pool that has an address, usable or not."""
        return self._known.match(address)

    def named(self, names: Sequence[str], version: int, use: str = WORKLOAD) -> list[Pool]:
        """SvcError when one does not exist or is of the other family, or none is for this use."""
        pools = [self._named(name, version) for name in names]
        fit = [pool for pool in pools if use in pool.allowed_uses]
        if not fit:
            raise errors.pools_of_other_use(pools, use)
        return fit

    def selected(
        self, version: int, node_labels: Mapping[str, str], namespace_labels: Mapping[str, str] = _NONE, use: str = WORKLOAD
    ) -> list[Pool]:
        """Who is in no namespace gets no address of a pool that selects namespaces by label."""
        return [
            pool for pool in self.all if pool.cidr.version == version and not why_not(pool, node_labels, namespace_labels, use)
        ]

    def misplaced(self, cidr: Cidr, node_labels: Mapping[str, str], *, usable: bool) -> bool:
        """Whether a block lies in a pool that does not select the node that owns it. Blocks in no pool are left alone, and,
        with `usable`, those in a pool that is out of use."""
        pool = (self._usable if usable else self._known).match(cidr.first)
        return pool is not None and not pool.node_selector.matches(node_labels)

    def _named(self, name: str, version: int) -> Pool:
        pool = self._by_text.get(name) or self._by_text.get(_canonical(name))
        if pool is None:
            raise errors.pool_unreadable(self.unreadable[name]) if name in self.unreadable else errors.pool_missing(name)
        if pool.cidr.version != version:
            raise errors.pool_wrong_family(name, version)
        return pool


def why_not(pool: Pool, node_labels: Mapping[str, str], namespace_labels: Mapping[str, str], use: str) -> str:
    """Why a pool serves only those that name it, or nobody; empty when it serves."""
    if not pool.usable:
        return "is disabled" if pool.disabled else "is out of use"
    if pool.assignment_mode != AUTOMATIC:
        return f"has assignmentMode {pool.assignment_mode}"
    if use not in pool.allowed_uses:
        return f"is for {' and '.join(pool.allowed_uses)}"
    if not pool.node_selector.matches(node_labels):
        return f"selects nodes by {pool.node_selector}"
    if not pool.namespace_selector.matches(namespace_labels):
        return f"selects namespaces by {pool.namespace_selector}"
    return ""


def _canonical(name: str) -> str:
    """The network of ADDRESS/LEN; a text without a length is a name."""
    try:
        return str(Cidr.masked(name)) if "/" in name else name
    except ValueError:
        return name
