"""Select the pools of a request.

A request that names pools gets addresses from these pools in the given order; their selectors are ignored. Other requests use
every usable pool with assignmentMode Automatic, in name order. The nodeSelector of the pool must select the node, and the
namespaceSelector must select the namespace (docs/reference/spec.md, rules R1 and R2).
"""

from collections.abc import Mapping, Sequence

from svc._core.cidr import Address, Cidr, CidrIndex
from svc.ipam import errors
from svc.model.pool import AUTOMATIC, WORKLOAD, Pool

_NONE: Mapping[str, str] = {}


class PoolSet:
    """The pools of a datastore: usable pools by name, CIDR and address, and all pools by address.

    `unreadable` has the faults of the pools that cannot be read, by name. A usable pool is not disabled, not being deleted, and
    not marked unusable by a controller.
    """

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
        """Return the CIDR of the block that has the address. Raise CallerError if no usable pool for this use has it."""
        pool = self._usable.match(address)
        if pool is None:
            raise errors.outside_pools(address, [*self.unreadable.values()])
        if use not in pool.allowed_uses:
            raise errors.pools_of_other_use([pool], use)
        return pool.cidr.block_of(address, pool.block_size)

    def pool_of(self, address: Address) -> Pool | None:
        """Return the pool that has the address, usable or not; None if no pool has it."""
        return self._known.match(address)

    def named(self, names: Sequence[str], version: int, use: str = WORKLOAD) -> list[Pool]:
        """Return the named pools that allow this use, in the given order.

        Raise CallerError if a pool does not exist or is of the other family, or if none allows this use. Raise PeerError if a
        pool cannot be read.
        """
        pools = [self._named(name, version) for name in names]
        fit = [pool for pool in pools if use in pool.allowed_uses]
        if not fit:
            raise errors.pools_of_other_use(pools, use)
        return fit

    def selected(
        self, version: int, node_labels: Mapping[str, str], namespace_labels: Mapping[str, str] = _NONE, use: str = WORKLOAD
    ) -> list[Pool]:
        """Return the pools that serve a request without pool names, in name order.

        A request without a namespace has no labels, so a pool that requires a namespace label does not serve it.
        """
        return [
            pool for pool in self.all if pool.cidr.version == version and not why_not(pool, node_labels, namespace_labels, use)
        ]

    def misplaced(self, cidr: Cidr, node_labels: Mapping[str, str], *, usable: bool) -> bool:
        """Return whether a block is ineligible: its pool does not select the node with these labels.

        Return False for an orphaned block and, with `usable`, for a block in a pool that is not usable.
        """
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
    """Return the reason if a pool does not serve a request that does not name it; an empty text if it does."""
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
    """Return ADDRESS/LEN without host bits. Return any other text, such as a pool name, unchanged."""
    try:
        return str(Cidr.masked(name)) if "/" in name else name
    except ValueError:
        return name
