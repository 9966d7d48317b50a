"""STATUS: whether an ADD would be served right now."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svc.attach.context import Context
from svc.attach.request import NodeSettings
from svc.model.errors import Code, PeerError, SvcError
from svc.trace import Trace

if TYPE_CHECKING:
    from svc.attach.delegation import Delegation


def status(
    context: Context,
    where: NodeSettings,
    versions: tuple[int, ...],
    pools: dict[int, tuple[str, ...]],
    trace: Trace,
    delegation: "Delegation | None" = None,
) -> None:
    """PeerError, code 50, with the cause."""
    with not_ready():
        session = context.session(where.profile, where.datastore, where.node)
        session.require_ready()
        session.require_claim()
        if delegation is None:
            for fault in session.ipam.check_room(versions, pools):
                trace.warning(f"an ADD passes {fault}")
        else:
            delegation.require_ready(context, where.datastore, trace)


@contextmanager
def not_ready() -> Iterator[None]:
    """Whatever fails in the block is why an ADD would: PeerError, code 50."""
    try:
        yield
    except SvcError as cause:
        raise PeerError(f"not ready: {cause.msg}", details=cause.details, code=Code.NOT_AVAILABLE) from cause
