"""The recorded state and the interfaces of a node, read from its files and by `ip`, for comparison before and after a call."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.audit import IpamAudit
from harness.node import Node
from harness.polling import wait_until
from svc._core.cidr import Address
from svc.attach.journal import Journal
from svc.attach.record import Record
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE as FILE
from svc.ipam.errors import AddressUnavailable
from svc.ipam.requests import Assign, Release, ReleaseTarget
from svc.ipam.service import IpamService


@dataclass(frozen=True)
class State:
    """The complete state, in a comparable form."""

    store: list[Any]
    journal: list[Any]
    links: list[Any]
    addresses: list[Any]
    routes: list[Any]

    @staticmethod
    def read(node: Node) -> "State":
        links = node.netns.ip("address")
        return State(
            _rows(node.state_dir / FILE, "SELECT path, value, revision FROM entries ORDER BY path"),
            _rows(node.state_dir / "journal.db", "SELECT * FROM attachments ORDER BY network, container, ifname"),
            [(link["ifname"], link["ifindex"], link["flags"], link["mtu"]) for link in links],
            [(link["ifname"], item["local"], item["prefixlen"]) for link in links for item in link["addr_info"]],
            [node.netns.ip(family, "route", "show", "table", "main") for family in ("-4", "-6")],
        )


@contextmanager
def store_of(node: Node) -> Iterator[Backend]:
    with closing(EmbeddedStore(node.state_dir / FILE)) as store:
        yield store


def audit(node: Node) -> IpamAudit:
    """Read the owner of each address from the store and the journal."""
    with store_of(node) as store, closing(Journal(node.state_dir / "journal.db")) as journal:
        return IpamAudit.read(store, journal)


def pod_links(node: Node) -> dict[str, int]:
    """Return the host interface of every pod: name and index."""
    return {link["ifname"]: link["ifindex"] for link in node.netns.ip("link") if link["ifname"].startswith("svc")}


def disagreements(node: Node) -> list[str]:
    """Return the contradictions between store, journal and kernel."""
    return audit(node).disagreements(pod_links(node))


def remains(node: Node) -> list[str]:
    """Return what is left of pods."""
    return [*audit(node).entries(), *(f"interface {name}" for name in pod_links(node))]


@contextmanager
def busy_store(node: Node) -> Iterator[None]:
    """Hold the write lock of the store inside the `with` block, so that calls which write wait."""
    with closing(sqlite3.connect(node.state_dir / FILE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def given_away(node: Node, text: str) -> Iterator[None]:
    """Inside the `with` block, let a container of another node have the address of a live pod.

    The agent may claim the address again between its release and its assignment, but not after the assignment.
    """
    handle, address = "net.other", Address(text)

    def has_moved() -> bool:
        ipam.release_addresses([ReleaseTarget(address)])
        with suppress(AddressUnavailable):
            ipam.assign(Assign(handle, {"node": "node9"}, addresses=(address,)))
            return True
        return False

    with store_of(node) as store:
        ipam = IpamService(store, "node9")
        wait_until(has_moved)
        yield
        ipam.release(Release(handle))


def edit_journal(node: Node, record: Record) -> None:
    """Replace the row of the same attachment."""
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        journal.begin(record)


def _rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()
