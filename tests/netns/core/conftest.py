"""Two temporary namespaces for tests of the compiled core, and a socket in one of them."""

from collections.abc import Iterator

import pytest

from harness.core_netns import Side, side
from svc._core import netns


@pytest.fixture
def host() -> Iterator[Side]:
    with side() as made:
        yield made


@pytest.fixture
def sandbox() -> Iterator[Side]:
    with side() as made:
        yield made


@pytest.fixture
def host_socket(host: Side) -> Iterator[netns.Socket]:
    with netns.Socket(host.fd) as opened:
        yield opened
