"""STATUS: whether an ADD would be served right now."""

from svc.attach.context import Context
from svc.attach.request import NodeSettings
from svc.model.errors import Code, PeerError, SvcError


def status(context: Context, where: NodeSettings, versions: tuple[int, ...], pools: dict[int, tuple[str, ...]]) -> None:
    """PeerError, code 50, with the cause."""
    try:
        session = context.session(where.profile, where.datastore, where.node)
        session.require_ready()
        session.ipam.check_room(versions, pools)
    except SvcError as cause:
        raise PeerError(f"not ready: {cause.msg}", details=cause.details, code=Code.NOT_AVAILABLE) from cause
