"""Summary of the datastore that the options of svcctl name."""

from typing import Any

from svc.admin.usage import ORPHANS, usage
from svc.ctl.cli_context import CliContext


def summary(context: CliContext) -> dict[str, Any]:
    """Return the datastore, and the use of its pools. Raise CallerError if none can be determined, StoreError."""
    target = context.target
    with context.store(target) as store:
        pools = [pool for pool in usage(store) if pool.name != ORPHANS]
    counts = ("capacity", "in_use", "reserved", "available")
    rows = [{"name": pool.name, "cidr": str(pool.cidr)} | {name: getattr(pool, name) for name in counts} for pool in pools]
    return {"place": str(target), "pools": rows}
