"""Findings of the conflicts that the agent meets when it claims the addresses of live attachments again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from svc.attach.conflict import Conflict
from svc.attach.record import AttachmentId
from svc.timestamps import rfc3339

if TYPE_CHECKING:
    from svc.admin.ipam_check.findings import Finding

_FIX: Final = "recreate the workload of {}, or end the one that has the address now: the agent then claims it again"


def conflict_findings(conflicts: Mapping[AttachmentId, Conflict]) -> "list[Finding]":
    """Return a finding for each conflict. It needs no second observation: the datastore has refused the address."""
    return [_finding(conflict) for conflict in list(conflicts.values())]


def name_of(attachment: AttachmentId) -> str:
    """Return the object of a finding about an attachment."""
    return f"{attachment.network} {attachment.container_id} {attachment.ifname}"


def _finding(conflict: Conflict) -> "Finding":
    from svc.admin.ipam_check.findings import candidate  # conflicts are rare, and it takes memory

    record, name = conflict.record, name_of(conflict.record.id)
    problem = f"another has its address: {conflict.refusal}"
    return candidate(
        "attachment-unallocated",
        name,
        f"{problem} (pod {record.namespace}/{record.pod})" if record.pod else problem,
        addresses=tuple(record.addresses),
        node=record.node,
        since=rfc3339(conflict.since),
        fix=_FIX.replace("{}", name),
    ).finding
