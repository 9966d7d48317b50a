"""Delegated address sources and their journal entries."""

from typing import Any

import orjson
import pytest

from svc.attach.record import ADDING, AttachmentId, Record
from svc.attach.recovery import store_of
from svc.attach.sources.delegated import DelegatedSource

SECRET = "token-of-the-network"
KEY = AttachmentId("net", "c1", "eth0")


def source(**environment: str) -> DelegatedSource:
    netconf: dict[str, Any] = {"name": "net", "policy": {"k8s_auth_token": SECRET}, "ipam": {"type": "host-local"}}
    return DelegatedSource("host-local", {"name": "net"}, {"CNI_COMMAND": "ADD", **environment}, netconf)


def record(**fields: Any) -> Record:
    return Record(KEY, ADDING, "boot", (1, 2), "n1", {"kind": "embedded"}, "svc1", "", **fields)


def marked_record(**environment: str) -> Record:
    entry = record(routes=["10.9.0.0/16"])
    source(**environment).mark(entry)
    return entry


def test_journal_entry_has_the_call_of_the_plugin_without_secrets() -> None:
    entry = marked_record(CNI_PATH="/a", CNI_ARGS="IP=10.0.0.1", CNI_NETNS="/n")
    assert entry.delegate == {
        "plugin": "host-local",
        "netconf": {"name": "net"},
        "environment": {"CNI_PATH": "/a", "CNI_NETNS": "/n"},
    }
    assert SECRET.encode() not in entry.to_bytes()
    assert Record.from_bytes(entry.to_bytes()) == entry


def test_entries_of_earlier_releases_have_neither_delegate_nor_routes() -> None:
    fields = orjson.loads(record().to_bytes())
    assert fields.keys().isdisjoint(("delegate", "routes"))
    old = Record.from_bytes(orjson.dumps(fields))
    assert (old.delegate, old.routes) == (None, None)


@pytest.mark.parametrize(
    ("now", "then", "path"), [("/new:/a", "/a:/b", "/new:/a:/b"), ("", "/a", "/a"), ("/new", "", "/new"), ("", "", "")]
)
def test_current_search_path_precedes_the_recorded_one(now: str, then: str, path: str) -> None:
    entry = marked_record(CNI_PATH=then)
    source(CNI_PATH=now).complete(entry)
    assert entry.delegate is not None
    assert entry.delegate["environment"]["CNI_PATH"] == path


def test_pending_releases_of_a_plugin_do_not_delay_those_of_pools() -> None:
    """A round of retries for one store ends at the first failure, so the two kinds count as different stores."""
    assert store_of(record()) != store_of(marked_record())
