"""The temporary namespaces of a host and a sandbox."""

from collections.abc import Iterator

import pytest

from harness.enter_netns import entered
from harness.inprocess import opened
from harness.netns import Netns
from svc.attach.request import Sandbox


@pytest.fixture
def netns() -> Iterator[Netns]:
    """Return the namespace of the host, and enter it."""
    with Netns("host") as namespace, entered(namespace):
        yield namespace


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Netns("pod") as namespace, opened(namespace) as sandbox:
        yield sandbox
