"""Fixtures of tests on the file of the embedded store."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from svc.datastore.embedded import EmbeddedStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(path)) as opened:
        yield opened
