"""Network namespaces for tests of the compiled core, which uses descriptors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.netns import Netns


@dataclass(frozen=True)
class Side:
    """A namespace and its descriptor."""

    netns: Netns
    fd: int


@contextmanager
def side() -> Iterator[Side]:
    with Netns("core") as netns:
        fd = os.open(netns.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield Side(netns, fd)
        finally:
            os.close(fd)
