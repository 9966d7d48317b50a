"""Addresses that bypass IPAM and are not in the datastore."""

from typing import Final

from svc.attach.context import Context
from svc.attach.record import Record
from svc.attach.sessions import Session
from svc.attach.sources import pool_release
from svc.attach.sources.base import AddressSource, AssignedAddresses, Assignment
from svc.call_trace import CallTrace
from svc.datastore.api import Delete, Found
from svc.model.result import IpConfig


class BypassSource(AddressSource):
    """Addresses that annotations name. The author of the annotations must avoid conflicts (rule R5)."""

    plugin = ""

    def mark(self, record: Record) -> None:
        record.unmanaged = True

    def assign(self, wanted: Assignment) -> AssignedAddresses:
        wanted.session.require_ready()  # no later write checks this
        addresses = wanted.addressing.addresses
        for address in addresses:
            _warn_of_conflict(wanted, str(address), *wanted.session.ipam.pool_and_handle(address))
        self.mark(wanted.record)
        interface = 1 if wanted.record.is_wired else None
        return AssignedAddresses(addresses, tuple(IpConfig(str(address.host()), interface) for address in addresses))

    def why_not_held(self, _session: Session, _record: Record, _trace: CallTrace) -> str:
        return ""

    def release(
        self,
        context: Context,
        session: Session,
        record: Record,
        trace: CallTrace,
        extra_write: Delete | None,
        handle: Found | None,
    ) -> bool:
        """Release only addresses that a failed ADD may have left under the handle."""
        return pool_release.release(context, session, record, trace, extra_write, handle, ())


BYPASS: Final = BypassSource()


def _warn_of_conflict(wanted: Assignment, address: str, pool: str, holder: str) -> None:
    if holder:
        wanted.trace.warning(f"address {address} bypasses IPAM, where {holder} holds it: both will answer for it")
    elif pool:
        remedy = "set it aside with an IPReservation"
        wanted.trace.warning(f"address {address} bypasses IPAM, which may assign it to others of pool {pool}: {remedy}")
