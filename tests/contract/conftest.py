"""Every datastore, fresh for each test. A new store joins the suite with an entry in `STORES`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from harness.wrapped import Piecemeal
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore

OpenStore = Callable[[], Backend]

STORES: dict[str, Callable[[Path], Backend]] = {
    "embedded": lambda folder: EmbeddedStore(folder / "store.db"),
    "piecemeal": lambda folder: Piecemeal(EmbeddedStore(folder / "store.db")),  # every key by itself
}


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens sessions with one datastore, as separate processes would; they are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(STORES[request.param](tmp_path)))


@pytest.fixture
def backend(open_store: OpenStore) -> Backend:
    return open_store()
