"""Conflicts: live attachments with an address that another handle has allocated."""

from svc.attach.record import Record
from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Conflict:
    """The attachment, the refusal of its claim, and the Unix time at which this process found it."""

    record: Record
    refusal: str
    since: float

    def __str__(self) -> str:
        key = self.record.id
        return f"address of live container {key.container_id!r} ({key.ifname}) is held by another: {self.refusal}"
