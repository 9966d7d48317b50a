"""Every datastore, fresh for each test. A new store joins the suite with an entry in `STORES`."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from harness.kube import Kube
from harness.orch import AdministratorStore, install, wipe
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.names import DEFAULT

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


STORES: dict[str, Callable[[pytest.FixtureRequest], Datastore]] = {
    "embedded": lambda request: Embedded(),
    "orch": lambda request: Orch(request.getfixturevalue("kube"), DEFAULT.crd_api_version),
    "orch, plain group": lambda request: Orch(request.getfixturevalue("kube"), DEFAULT.api_version),
}
OF_THE_STORE_ITSELF = {"orch, plain group": ("test_backend", "test_watch")}  # what is above it cannot tell the groups apart


# What the allocator does not yet do over a store whose writes may be applied in part.
UNFINISHED = re.compile(
    r"test_two_processes_of_a_node_claim_the_same_block_once\[orch|"
    r"test_blocks_taken_away_behind_our_back_are_given_up\[orch-[bg]|"
    r"test_no_address_is_given_twice_and_none_is_lost\[.*orch|"
    r"test_rivals_for_the_last_addresses_share_them_out\[orch|"
    r"test_a_request_that_cannot_be_stored_leaves_its_group_alone\[orch|"
    r"test_what_was_wiped_is_made_anew\[.*orch-(blocks|all)|"
    r"test_a_datastore_wiped_to_the_ground_serves_again\[late news-orch|"
    r"test_a_lost_race_is_run_again\[orch|"
    r"test_a_race_that_is_always_lost_ends\[orch"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if UNFINISHED.match(item.name):
            reason = "a group of writes that was partly applied is not gone on with"
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "datastore" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        wanted = [name for name in STORES if module in OF_THE_STORE_ITSELF.get(name, (module,))]
        metafunc.parametrize("datastore", wanted, indirect=True, scope="session")


@pytest.fixture(scope="session")
def datastore(request: pytest.FixtureRequest) -> Datastore:
    return STORES[request.param](request)


@pytest.fixture
def open_store(datastore: Datastore, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens sessions with one datastore, as separate processes would; they are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(datastore.open(tmp_path)))
    datastore.clear()


@pytest.fixture
def backend(open_store: OpenStore) -> Backend:
    return open_store()
