"""Every datastore, fresh for each test. A new store joins the suite with an entry in `STORES`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.backend_wrappers import NonAtomic
from harness.etcd import Cluster, cluster
from harness.kube import Kube
from harness.orch import AdministratorStore, install, wipe
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.names import DEFAULT, Names

OpenStore = Callable[[], Backend]


class Datastore(Protocol):
    """One that is there for the whole run."""

    def open(self, folder: Path) -> Backend:
        """A session; the folder is the test's own."""

    def clear(self) -> None:
        """Forgets what a test has written."""


class Embedded:
    """A file in the test's folder."""

    def open(self, folder: Path) -> Backend:
        return EmbeddedStore(folder / "store.db")

    def clear(self) -> None:
        pass


class KeyByKey(Embedded):
    """The same, where every key is written by itself."""

    def open(self, folder: Path) -> Backend:
        return NonAtomic(super().open(folder))


class Etcd:
    """A real server; the folder of a test is its key root."""

    def __init__(self, running: Cluster) -> None:
        self._settings = {"kind": "etcdv3", "etcd_endpoints": running.endpoints}

    def open(self, folder: Path) -> Backend:
        from svc.datastore.etcd.store import EtcdStore

        return EtcdStore(self._settings, Names(key_root=str(folder)))

    def clear(self) -> None:
        pass


class Orch:
    """Custom resources of a real API server."""

    def __init__(self, kube: Kube, api_version: str) -> None:
        self._kube = kube
        self._api_version = api_version
        install(kube, DEFAULT, api_version)

    def open(self, folder: Path) -> Backend:
        return AdministratorStore(self._kube, folder, DEFAULT, self._api_version)

    def clear(self) -> None:
        wipe(self._kube, DEFAULT, self._api_version)


STORES: dict[str, Callable[[pytest.FixtureRequest, ExitStack, Path], Datastore]] = {
    "embedded": lambda request, opened, folder: Embedded(),
    "piecemeal": lambda request, opened, folder: KeyByKey(),
    "etcdv3": lambda request, opened, folder: Etcd(opened.enter_context(cluster(folder))),
    "orch": lambda request, opened, folder: Orch(request.getfixturevalue("kube"), DEFAULT.crd_api_version),
    "orch, plain group": lambda request, opened, folder: Orch(request.getfixturevalue("kube"), DEFAULT.api_version),
}
WITHOUT_SERVER = ("embedded", "piecemeal")
ONLY = {"orch, plain group": ("test_backend", "test_watch")}  # what is above it cannot tell the groups apart
ITS_OWN = {"test_ipam_partial": ("embedded",)}  # fails every single call by itself, of a store that it takes apart


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "datastore" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        fit = metafunc.definition.get_closest_marker("only_over")
        wanted = [name for name in ITS_OWN.get(module, STORES) if module in ONLY.get(name, (module,))]
        wanted = [name for name in wanted if fit is None or name in fit.args]
        metafunc.parametrize("datastore", map(_marked, wanted), indirect=True, scope="session")


def _marked(store: str) -> Any:
    return store if store in WITHOUT_SERVER else pytest.param(store, marks=pytest.mark.server)


@pytest.fixture(scope="session")
def datastore(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datastore]:
    """Open the datastore for as long as tests use it."""
    with ExitStack() as opened:
        yield STORES[request.param](request, opened, tmp_path_factory.mktemp("store"))


@pytest.fixture
def open_store(datastore: Datastore, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens sessions with one datastore, as separate processes would; they are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(datastore.open(tmp_path)))
    datastore.clear()


@pytest.fixture
def backend(open_store: OpenStore) -> Backend:
    return open_store()
