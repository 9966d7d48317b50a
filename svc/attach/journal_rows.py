"""What is read of the journal's rows."""

from collections.abc import Sequence
from typing import Any

from svc.attach.journal_file import DATASTORES, INTERFACES, STATES, UNSETTLED, datastore_of, decode, key_of
from svc.attach.record import DELETING, AttachmentId, Record, SessionKey

_KEY = "network = ? AND container = ? AND ifname = ?"


class JournalRows:
    """The queries. A row that cannot be decoded is set aside when it is met. Methods raise StoreError if the file fails.

    To decode thousands of rows takes long: what is asked for every few seconds is selected by SQLite.
    """

    def get(self, key: AttachmentId) -> Record | None:
        found = self._records(_KEY, key_of(key))
        return found[0] if found else None

    def all(self) -> list[Record]:
        return self._records("true", ())

    def pending_releases(self) -> list[Record]:
        """Return the attachments with a pending release."""
        return [record for record in self.unsettled() if record.state == DELETING]

    def unsettled(self) -> list[Record]:
        """Return the attachments of running and interrupted calls, and those with a pending release."""
        return self._records(UNSETTLED, ())

    def states(self) -> list[tuple[int, str, float | None]]:
        """Return, for each readable row, generation, state, and since when (Unix time) its release is pending, if known."""
        return self._read(STATES, ())

    def datastores(self) -> set[tuple[str, SessionKey]]:
        """Return the networks of all attachments, each with the keys of its datastore sessions."""
        rows = [(str(network), datastore_of(text)) for network, text in self._read(DATASTORES, ())]
        return {(network, where) for network, where in rows if where}

    def of_network(self, network: str) -> list[Record]:
        return self._records("network = ?", (network,))

    def of_container(self, network: str, container_id: str, *, except_for: str = "") -> list[Record]:
        """Return the container's attachments to the network, without that of the interface `except_for`."""
        return self._records("network = ? AND container = ? AND ifname <> ?", (network, container_id, except_for))

    def of_interface(self, container_id: str, ifname: str) -> list[Record]:
        """Return the attachments of the interface, in every network."""
        return self._records("container = ? AND ifname = ?", (container_id, ifname))

    def with_host_name(self, host_name: str) -> list[Record]:
        """Return the attachments whose host interface has, or had, this name."""
        return self._records("host_name = ?", (host_name,))

    def interfaces(self, boot_id: str) -> set[tuple[str, int]]:
        """Return the host interface of each row of this boot: its name, and its index once the attachment is added, or 0."""
        return {(str(name), index) for name, index in self._read(INTERFACES, (boot_id,))}

    def note(self, name: str) -> str:
        """Return the text that `put_note` stored under a name, or an empty string."""
        rows = self._read("SELECT value, 0 FROM about WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else ""

    def notes(self, pattern: str) -> dict[str, str]:
        """Return the texts that `put_note` stored under the names that match the GLOB pattern, by name."""
        return dict(self._read("SELECT name, value FROM about WHERE name GLOB ?", (pattern,)))

    def _records(self, where: str, parameters: Sequence[str]) -> list[Record]:
        statement = f"SELECT network, container, ifname, record, generation FROM attachments WHERE {where}"  # noqa: S608
        found = []
        for network, container, ifname, data, generation in self._read(statement, parameters):
            try:
                found.append(decode((network, container, ifname), data, generation))
            except ValueError as error:
                self._set_aside((network, container, ifname, generation), str(error))
        return found

    def _read(self, statement: str, parameters: Sequence[str | int]) -> list[Any]:
        """Return all rows of a statement."""
        raise NotImplementedError

    def _set_aside(self, row: tuple[str, str, str, int], reason: str) -> None:
        """Move a row that cannot be decoded out of the way."""
        raise NotImplementedError
