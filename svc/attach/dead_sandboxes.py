"""Attachments whose interface and sandbox do not exist any more, so that no DEL may come for them."""

import os
from collections.abc import Callable, Iterable

from svc.attach.context import Context
from svc.attach.record import ADDED, AttachmentId, Record
from svc.attach.shared_interface import interface_owner


def dead_attachments(context: Context, records: Iterable[Record], exists: Callable[[int], bool]) -> list[Record]:
    """Return the attachments of this boot whose interface, by its index, does not exist, and whose sandbox does not either.

    Leave out what records no sandbox: attachments in the IPAM role, and rows that were restored.
    """
    return [record for record in records if _is_wired(context, record, exists) is False and _is_gone(record)]


def is_dead(context: Context, key: AttachmentId, generation: int) -> bool:
    """Return whether the attachment still has this row, and neither interface nor sandbox. Raise SvcError.

    The caller must exclude concurrent calls of the same container.
    """
    record = context.journal.get(key)
    if record is None or record.generation != generation:
        return False
    return bool(dead_attachments(context, [record], lambda index: context.kernel.find_link(index=index) is not None))


def _is_wired(context: Context, record: Record, exists: Callable[[int], bool]) -> bool | None:
    """Return whether the interface exists; None if the attachment should have none now."""
    if record.state != ADDED or record.boot_id != context.boot_id or record.is_restored:
        return None
    if not (record.is_wired or record.shares):
        return None
    owner = interface_owner(context, record) if record.shares else record
    return owner is not None and exists(owner.host_index)


def _is_gone(record: Record) -> bool:
    """Return whether the path of the sandbox, which the ADD's result names, leads to another namespace or nowhere.

    The inode alone does not tell, because the kernel gives it to a later namespace. Nothing is known if the runtime's directory
    of namespaces does not exist: it is not mounted in the container of the agent.
    """
    interfaces = (record.result or {}).get("interfaces") or ()
    path = next((each["sandbox"] for each in interfaces if each.get("sandbox")), "")
    if not path:
        return False
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return path.startswith("/proc/") or os.path.isdir(os.path.dirname(path))
    except OSError:
        return False
    return (found.st_dev, found.st_ino) != record.sandbox
