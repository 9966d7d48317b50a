"""Address blocks against netaddr: its IPSet of the free addresses, and its arithmetic beside a queue of ordinals."""

from collections import deque
from collections.abc import Callable

import netaddr  # type: ignore[import-untyped]

from bench._core_case import Case, run
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr

BLOCK = "10.65.130.64/26"
SIZE = 64
STORED_TAGS = [ordinal % 4 if ordinal < SIZE // 2 else None for ordinal in range(SIZE)]
STORED_QUEUE = list(range(SIZE - 1, SIZE // 2 - 1, -1))


def cases() -> list[Case]:
    cycle = "allocate, format and release one address of a /26"
    return [
        Case(cycle, cycle_of_ours(), cycle_of_set(), "netaddr IPSet", goal=30),
        Case(cycle, cycle_of_ours(), cycle_of_queue(), "netaddr and a deque", goal=10),
        Case("load and store a half full /26", restore, restore_in_python, "plain Python", goal=1),
    ]


def cycle_of_ours() -> Callable[[], str]:
    network, block = Cidr(BLOCK), Ordinals(6)

    def cycle() -> str:
        ordinal = block.allocate(0)
        text = str(network.address(ordinal))
        block.release(ordinal)
        return text

    return cycle


def cycle_of_set() -> Callable[[], str]:
    free = netaddr.IPSet([BLOCK])

    def cycle() -> str:
        address = next(iter(free))
        free.remove(address)
        text = str(address)
        free.add(address)
        return text

    return cycle


def cycle_of_queue() -> Callable[[], str]:
    network, queue, taken = netaddr.IPNetwork(BLOCK), deque(range(SIZE)), dict[int, int]()

    def cycle() -> str:
        ordinal = queue.popleft()
        taken[ordinal] = 0
        text = str(network[ordinal])
        del taken[ordinal]
        queue.append(ordinal)
        return text

    return cycle


def restore() -> tuple[list[int | None], list[int]]:
    block = Ordinals.load(STORED_TAGS, STORED_QUEUE)
    return block.allocations(), block.unallocated()


def restore_in_python() -> tuple[list[int | None], list[int]]:
    """Do the same checks with the fewest steps that Python has for them."""
    taken = {ordinal: tag for ordinal, tag in enumerate(STORED_TAGS) if tag is not None}
    queue = deque(STORED_QUEUE)
    if not all(0 <= tag < 32768 for tag in taken.values()):
        raise ValueError("tag")
    if len(queue) != SIZE - len(taken) or set(queue) != set(range(SIZE)) - taken.keys():
        raise ValueError("queue")
    return [taken.get(ordinal) for ordinal in range(SIZE)], list(queue)


if __name__ == "__main__":
    run(cases())
