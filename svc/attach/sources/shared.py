"""The source of an attachment that shares the interface and the addresses of another network's attachment."""

from contextlib import suppress

from svc.attach.context import Context
from svc.attach.endpoints import edit_profiles, has_profile
from svc.attach.record import Record
from svc.attach.sessions import Session
from svc.attach.sources.base import AddressSource
from svc.call_trace import CallTrace
from svc.datastore.api import Delete, Found, NotFound


class SharedSource(AddressSource):
    """A source without addresses: the endpoint of the other attachment has the network in its profiles.

    `former` may have addresses under the handle, if the record was made for an attachment without a row.
    """

    def __init__(self, former: AddressSource) -> None:
        self._former = former
        self.plugin, self.uses_pools, self.has_handle = former.plugin, former.uses_pools, former.has_handle

    def why_not_held(self, session: Session, record: Record, trace: CallTrace) -> str:
        if why := self._former.why_not_held(session, record, trace):
            return why
        if has_profile(session, record):
            return ""
        return f"the endpoint of this container does not name network {record.id.network}"

    def release(
        self,
        context: Context,
        session: Session,
        record: Record,
        trace: CallTrace,
        extra_write: Delete | None,
        handle: Found | None,
    ) -> bool:
        with suppress(NotFound):
            edit_profiles(session, record, add=False)
        return self._former.release(context, session, record, trace, extra_write, handle)
