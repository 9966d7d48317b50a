"""Warnings about pools that the operator's resource owns."""

from collections.abc import Collection

from svc.admin import resources
from svc.admin.resources import POOL
from svc.datastore.api import Backend
from svc.names import Names


def managed_pools(store: Backend, changed: Collection[str], names: Names) -> list[str]:
    """Return a line for each changed pool that belongs to the operator's resource."""
    if not changed:
        return []
    from svc.admin.operator_resource import is_managed  # few installations have an operator

    found = (pool for pool in resources.get(store, POOL) if pool.name in changed and is_managed(pool, names))
    effect = "belongs to the operator's resource: the next `svcctl install --apply-pools` changes it back"
    return [f"IP pool {pool.name!r} {effect}" for pool in found]
