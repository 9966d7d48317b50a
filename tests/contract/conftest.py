"""Fixtures that give each test an empty datastore. To add a datastore, add an entry to `STORES`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.api_fixtures import client, fast_looks, proxy
from harness.backend_wrappers import NonAtomic
from harness.driven_part import world
from harness.etcd import Cluster, cluster
from harness.kube import Kube
from harness.orch import AdministratorStore, install, wipe
from harness.service_fixtures import services
from harness.site_fixtures import etcd, etcd_site, home, orch_site, site
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.overlay import Overlay
from svc.names import DEFAULT, Names

__all__ = ["client", "etcd", "etcd_site", "fast_looks", "home", "orch_site", "proxy", "services", "site", "world"]

OpenStore = Callable[[], Backend]


class Datastore(Protocol):
    """A datastore that exists for the whole test run."""

    def open(self, folder: Path) -> Backend:
        """Open a session. Each test has its own folder."""

    def clear(self) -> None:
        """Delete everything that a test has written."""


class Embedded:
    """The embedded store, with its file in the test's folder."""

    def open(self, folder: Path) -> Backend:
        return EmbeddedStore(folder / "store.db")

    def clear(self) -> None:
        pass


class KeyByKey(Embedded):
    """The embedded store, with a separate write for each key."""

    def open(self, folder: Path) -> Backend:
        return NonAtomic(super().open(folder))


class Planned(Embedded):
    """An overlay of the embedded store, which keeps what is written in memory. All sessions of a test share it."""

    def __init__(self) -> None:
        self._opened: dict[Path, Overlay] = {}

    def open(self, folder: Path) -> Backend:
        if folder not in self._opened:
            self._opened[folder] = Overlay(super().open(folder), DEFAULT)
        return self._opened[folder]

    def clear(self) -> None:
        self._opened.clear()


class Etcd:
    """A real etcd server. The folder of a test is its key root."""

    def __init__(self, running: Cluster) -> None:
        self._settings = {"kind": "etcdv3", "etcd_endpoints": running.endpoints}

    def open(self, folder: Path) -> Backend:
        from svc.datastore.etcd.store import EtcdStore

        return EtcdStore(self._settings, Names(key_root=str(folder)))

    def clear(self) -> None:
        pass


class Orch:
    """The custom resources of a real API server."""

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
    "overlay": lambda request, opened, folder: Planned(),
    "etcdv3": lambda request, opened, folder: Etcd(opened.enter_context(cluster(folder))),
    "orch": lambda request, opened, folder: Orch(request.getfixturevalue("kube"), DEFAULT.crd_api_version),
    "orch, plain group": lambda request, opened, folder: Orch(request.getfixturevalue("kube"), DEFAULT.api_version),
}
WITHOUT_SERVER = ("embedded", "piecemeal", "overlay")
MODULES_OF_STORE = {
    "overlay": ("test_backend", "test_update"),
    "orch, plain group": ("test_backend", "test_changes", "test_controllers_configuration", "test_watch"),
}  # layers above the store do not distinguish the API groups
STORES_OF_MODULE = {"test_ipam_partial": ("embedded",)}  # splits the writes of a store, and fails each of them


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "datastore" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        fit = metafunc.definition.get_closest_marker("only_over")
        wanted = [name for name in STORES_OF_MODULE.get(module, STORES) if module in MODULES_OF_STORE.get(name, (module,))]
        wanted = [name for name in wanted if fit is None or name in fit.args]
        metafunc.parametrize("datastore", map(_marked, wanted), indirect=True, scope="session")


def _marked(store: str) -> Any:
    return store if store in WITHOUT_SERVER else pytest.param(store, marks=pytest.mark.server)


@pytest.fixture(scope="session")
def datastore(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datastore]:
    """Keep the datastore open while tests use it."""
    with ExitStack() as opened:
        yield STORES[request.param](request, opened, tmp_path_factory.mktemp("store"))


@pytest.fixture
def open_store(datastore: Datastore, tmp_path: Path) -> Iterator[OpenStore]:
    """Return a function that opens sessions with one datastore, as separate processes do. The fixture closes them."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(datastore.open(tmp_path)))
    datastore.clear()


@pytest.fixture
def backend(open_store: OpenStore) -> Backend:
    return open_store()


@pytest.fixture(scope="session")
def defined_kube(kube: Kube) -> Kube:
    """Return the API server of the run, with svc's resource definitions."""
    install(kube)
    return kube


@pytest.fixture
def clean_kube(defined_kube: Kube) -> Iterator[Kube]:
    """Return the API server of the run, and delete what the test wrote to it."""
    yield defined_kube
    wipe(defined_kube)
