"""The address source of a record."""

from contextlib import suppress

from svc.attach.endpoints import edit_profiles, stored_endpoint
from svc.attach.record import Record
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import AddressSource, Holdings
from svc.attach.sources.own import BYPASS, POOLS_OF_SVC
from svc.call_trace import CallTrace
from svc.datastore.api import Delete, NotFound


def source_of(record: Record) -> AddressSource:
    """Return the source of the attachment's addresses."""
    source: AddressSource = BYPASS if record.unmanaged else POOLS_OF_SVC
    if record.delegate is not None:
        from svc.attach.sources.delegated import DelegatedSource  # imported late: most nodes need no other plugin

        source = DelegatedSource.recorded(record.delegate)
    return SharedSource(source) if record.shares else source


class SharedSource(AddressSource):
    """A source without addresses: the endpoint of another network's attachment has the network in its profiles.

    `former` may have addresses under the handle, if the record was made for an attachment without a row.
    """

    def __init__(self, former: AddressSource) -> None:
        self._former = former
        self.plugin, self.uses_pools, self.has_handle = former.plugin, former.uses_pools, former.has_handle

    def why_not_held(self, session: DatastoreSession, record: Record, trace: CallTrace) -> str:
        if why := self._former.why_not_held(session, record, trace):
            return why
        stored = stored_endpoint(session, record)
        if stored is not None and stored.is_of(record) and record.id.network in stored.profiles:
            return ""
        return f"the endpoint of this container does not name network {record.id.network}"

    def release(self, held: Holdings, extra_write: Delete | None) -> bool:
        with suppress(NotFound):
            edit_profiles(held.session, held.record, add=False)
        return self._former.release(held, extra_write)
