"""Dumps of tables that change at the same time: the kernel reports that they may lack entries, and they are repeated."""

import errno
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from harness.netns import Netns, run
from svc._core import netns, rtnl
from svc.dataplane.kernel import query

pytestmark = pytest.mark.root

LINKS = 30  # a dump has several messages, between which the table may change
CHANGES = "link add changing type veth peer name other\nlink delete changing"
INTERRUPTED = 5
SECONDS = 60.0  # the kernel interrupts a dump only if a change comes between its parts


@pytest.fixture
def changing() -> Iterator[int]:
    """Return a descriptor of a namespace whose links another process changes without a pause."""
    with Netns("changing") as namespace:
        run("ip", "-n", namespace.name, "-batch", "-", stdin="".join(f"link add d{n} type bridge\n" for n in range(LINKS)))
        command = ["ip", "-n", namespace.name, "-force", "-batch", "-"]
        with (
            subprocess.Popen(["yes", CHANGES], stdout=subprocess.PIPE) as source,
            subprocess.Popen(command, stdin=source.stdout, stderr=subprocess.DEVNULL) as changes,
        ):
            descriptor = os.open(namespace.path, os.O_RDONLY)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
                changes.kill()
                source.kill()


def dump() -> rtnl.Batch:
    request = rtnl.Batch()
    request.dump_links()
    return request


def test_interrupted_dump_is_repeated(changing: int) -> None:
    socket, interrupted, until = netns.Socket(changing), 0, time.monotonic() + SECONDS
    while interrupted < INTERRUPTED and time.monotonic() < until:
        try:
            socket.query(dump())
        except OSError as failure:
            interrupted += failure.errno == errno.EINTR
        names = {rtnl.unpack_link(message)["name"] for message in query(socket, dump())}
        assert names >= {f"d{number}" for number in range(LINKS)}
    assert interrupted, "no dump was interrupted: this test shows nothing"
