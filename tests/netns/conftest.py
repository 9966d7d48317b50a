"""Two temporary namespaces for every test: the host, which the thread of the test is in, and a sandbox."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.enter_netns import entered
from harness.inprocess import Host, opened
from harness.netns import Netns
from svc.attach.request import Sandbox


@pytest.fixture
def netns() -> Iterator[Netns]:
    """Return the namespace of the host, and enter it."""
    with Netns("host") as namespace, entered(namespace):
        yield namespace


@pytest.fixture
def pod() -> Iterator[Netns]:
    with Netns("pod") as namespace:
        yield namespace


@pytest.fixture
def sandbox(pod: Netns) -> Iterator[Sandbox]:
    with opened(pod) as sandbox:
        yield sandbox


@pytest.fixture
def host(tmp_path: Path, netns: Netns) -> Iterator[Host]:
    with Host(tmp_path, netns) as host:
        yield host
