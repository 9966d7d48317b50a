"""Number of calls that this node has served without an agent, kept in the journal."""

from svc.attach.journal import Journal

_NOTE = "one-shot calls"


def read_number(journal: Journal) -> int:
    """Return the number of calls since the journal began. Raise StoreError if the journal cannot be read."""
    return int(journal.note(_NOTE) or 0)


def count_call(journal: Journal) -> None:
    """Count a call that this one-shot process has served. No other process may count at the same time."""
    journal.put_note(_NOTE, str(read_number(journal) + 1))
