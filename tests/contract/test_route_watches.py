"""Copies of routes whose watches expire: what was deleted in that time is noticed, and nothing is forgotten."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from contract.test_watch import eventually
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import OrchSite
from harness.etcd import cluster
from harness.etcd_sessions import session
from harness.ipam import put_affinity, put_pool, remove
from harness.kube import ADMIN_TOKEN
from harness.proxy import proxy as relayed
from svc._core.cidr import Cidr
from svc.datastore.api import Backend
from svc.datastore.orch.store import OrchStore
from svc.model.keys import AffinityKey
from svc.names import DEFAULT
from svc.routes.copies import Copies

pytestmark = pytest.mark.server

KEPT, GONE, NEW = (Cidr(f"10.0.0.{number}/26") for number in (0, 64, 128))
LONG_NAME = "n" * 253
EXPIRED = b'{"kind":"Status","status":"Failure","reason":"Expired","message":"too old resource version","code":410}'


@contextmanager
def copied(store: Backend) -> Iterator[Copies]:
    copies = Copies(store, DEFAULT, lambda: None)
    copies.start()
    copies.read_blocks()
    try:
        assert eventually(lambda: copies.is_complete)
        yield copies
    finally:
        copies.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("copies-")]


def require_current(writer: Backend, store: Backend, interrupt: Callable[[], None], go_on: Callable[[], None]) -> None:
    """Change claims while the watches are interrupted, so that they cannot continue where they were."""
    put_pool(writer, "pool", "10.0.0.0/16")
    put_affinity(writer, str(KEPT), node=LONG_NAME)
    put_affinity(writer, str(GONE), node="node1")
    with copied(store) as copies:
        assert copies.inputs().claims == {KEPT: {LONG_NAME: True}, GONE: {"node1": True}}
        interrupt()
        assert eventually(lambda: copies.interrupted_since is not None)
        assert any(text.startswith("changes of affinities are not known") for text in copies.problems())
        remove(writer, AffinityKey("node1", GONE))
        put_affinity(writer, str(NEW), node="node1")
        go_on()
        assert eventually(lambda: copies.inputs().claims == {KEPT: {LONG_NAME: True}, NEW: {"node1": True}})
        assert eventually(lambda: copies.interrupted_since is None and not list(copies.problems()))
        put_affinity(writer, str(GONE), node="node1")
        assert eventually(lambda: GONE in copies.inputs().claims)


def test_a_revision_that_etcd_has_compacted(tmp_path: Path) -> None:
    with cluster(tmp_path) as server, relayed(server.members[0].ports[0]) as relay:
        with session(server.endpoints) as writer, session(f"http://{relay.authority}") as store:

            def interrupt() -> None:
                relay.discard_replies = True
                relay.cut()

            def go_on() -> None:
                writer.compact(writer.revision())
                relay.discard_replies = False
                relay.cut()

            require_current(writer, store, interrupt, go_on)


@pytest.mark.parametrize("kind", ["blockaffinities", ""])
def test_a_revision_that_the_api_server_has_forgotten(orch_site: OrchSite, proxy: ApiProxy, kind: str) -> None:
    """A watch of one kind, and of all."""
    orch_site.clear()
    settings = {"orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN}
    with closing(orch_site.open()) as writer, closing(OrchStore(settings, DEFAULT)) as store:

        def interrupt() -> None:
            proxy.arm(Order(Fate.NEVER_SENT, f"^GET .*{kind}", times=1_000_000))
            proxy.hang_up()

        def go_on() -> None:
            proxy.disarm()
            proxy.arm(Order(Fate.ANSWERED, f"^GET .*{kind}.*watch=true", times=4, status=410, body=EXPIRED))

        require_current(writer, store, interrupt, go_on)
    orch_site.clear()
