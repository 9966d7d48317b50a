"""Every datastore, fresh for each test. A new store joins the suite with an entry in `STORES`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from harness.etcd import cluster
from harness.wrapped import Piecemeal
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.names import Names

OpenStore = Callable[[], Backend]
MakeStore = Callable[[Path], Backend]  # a session with the datastore of a folder


@contextmanager
def _etcd(folder: Path) -> Iterator[MakeStore]:
    """One server for all tests; the folder of a test is its key root."""
    from svc.datastore.etcd.store import EtcdStore

    with cluster(folder) as running:
        settings = {"kind": "etcdv3", "etcd_endpoints": running.endpoints}
        yield lambda root: EtcdStore(settings, Names(key_root=str(root)))


STORES: dict[str, Callable[[Path], AbstractContextManager[MakeStore]]] = {
    "embedded": lambda _: nullcontext(lambda folder: EmbeddedStore(folder / "store.db")),
    "etcdv3": _etcd,
    "piecemeal": lambda _: nullcontext(lambda folder: Piecemeal(EmbeddedStore(folder / "store.db"))),  # every key by itself
}


@pytest.fixture(scope="session", params=STORES)
def make_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStore]:
    """Whatever serves the datastore runs as long as tests use it."""
    with STORES[request.param](tmp_path_factory.mktemp(request.param)) as make:
        yield make


@pytest.fixture
def open_store(make_store: MakeStore, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens sessions with one datastore, as separate processes would; they are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(make_store(tmp_path)))


@pytest.fixture
def backend(open_store: OpenStore) -> Backend:
    return open_store()
