"""Address sources, as the journal records them and as other parts use them."""

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


def marked(**environment: str) -> Record:
    row = record(routes=["10.9.0.0/16"])
    source(**environment).mark(row)
    return row


def test_journal_keeps_how_to_call_and_no_secret() -> None:
    row = marked(CNI_PATH="/a", CNI_ARGS="IP=10.0.0.1", CNI_NETNS="/n")
    assert row.delegate == {
        "plugin": "host-local",
        "netconf": {"name": "net"},
        "environment": {"CNI_PATH": "/a", "CNI_NETNS": "/n"},
    }
    assert SECRET.encode() not in row.to_bytes()
    assert Record.from_bytes(row.to_bytes()) == row


def test_rows_of_before_have_neither_delegate_nor_routes() -> None:
    fields = orjson.loads(record().to_bytes())
    for name in ("delegate", "routes"):
        del fields[name]
    old = Record.from_bytes(orjson.dumps(fields))
    assert (old.delegate, old.routes) == (None, None)


@pytest.mark.parametrize(
    ("now", "then", "path"), [("/new:/a", "/a:/b", "/new:/a:/b"), ("", "/a", "/a"), ("/new", "", "/new"), ("", "", "")]
)
def test_plugin_is_looked_for_where_it_is_now(now: str, then: str, path: str) -> None:
    row = marked(CNI_PATH=then)
    source(CNI_PATH=now).complete(row)
    assert row.delegate is not None
    assert row.delegate["environment"]["CNI_PATH"] == path


def test_pending_releases_of_another_plugin_do_not_delay_those_of_pools() -> None:
    """A round of retries ends with the first release that fails; each kind has its own."""
    assert store_of(record()) != store_of(marked())
