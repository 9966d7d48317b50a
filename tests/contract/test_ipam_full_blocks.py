"""Full blocks on every datastore: a later request finds each address that becomes free, also if another process releases it."""

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import pytest

from harness.ipam import NODE, blocks, free, holdings, in_threads, put_node, put_pool, put_settings, take
from svc.datastore.api import Backend
from svc.ipam.errors import NoAddress
from svc.ipam.service import IpamService

SIZE = 32  # addresses of the pool


@pytest.mark.parametrize("strict", [False, True], ids=["borrows", "strict"])
def test_every_free_address_is_found(open_store: Callable[[], Backend], strict: bool) -> None:
    """Two processes of a node and another node take and release addresses. Then the node takes all that it may have."""
    backend = open_store()
    for node in (NODE, "node2"):
        put_node(backend, node)
    put_pool(backend, "pool4", "10.65.0.0/27", blockSize=30)
    put_settings(backend, strict_affinity=strict)
    services = [IpamService(open_store(), node) for node in (NODE, NODE, "node2")]
    assert in_threads(partial(_take_and_free, services, seed) for seed in range(3)) == [None] * 3
    for number in range(3):
        for handle in list(holdings(backend))[number::4]:
            free(services[number], handle)
        _take_all(services[0], f"net.last{number}-")
        with_free = {block.affinity for block in blocks(backend).values() if block.ordinals.used < block.ordinals.size}
        assert with_free <= ({"host:node2"} if strict else set())
        assert len(blocks(backend)) == SIZE // 4


def _take_all(ipam: IpamService, prefix: str) -> None:
    numbers = count()
    while _taken(ipam, f"{prefix}{next(numbers)}"):
        pass


def _take_and_free(services: list[IpamService], seed: int) -> None:
    random, held = Random(seed), list[str]()
    for step in range(60):
        if held and random.random() < (0.3 if step < 40 else 0.5):
            free(random.choice(services), held.pop(random.randrange(len(held))))
        elif _taken(services[seed], handle := f"net.c{seed}-{step}"):
            held.append(handle)


def _taken(ipam: IpamService, handle: str) -> bool:
    try:
        take(ipam, handle)
    except NoAddress:
        return False
    return True
