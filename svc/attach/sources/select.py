"""The address source of a record."""

from svc.attach.record import Record
from svc.attach.sources.base import AddressSource
from svc.attach.sources.bypass import BYPASS
from svc.attach.sources.own import POOLS_OF_SVC
from svc.attach.sources.shared import SharedSource


def source_of(record: Record) -> AddressSource:
    """Return the source of the attachment's addresses."""
    source: AddressSource = BYPASS if record.unmanaged else POOLS_OF_SVC
    if record.delegate is not None:
        from svc.attach.sources.delegated import DelegatedSource  # imported late: most nodes need no other plugin

        source = DelegatedSource.recorded(record.delegate)
    return SharedSource(source) if record.shares else source
