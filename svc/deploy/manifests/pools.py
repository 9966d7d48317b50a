"""The pools that a deployment creates.

svc-routes, which runs in the same deployment, reaches nodes of the same subnet directly, all others by VXLAN, and gives packets
to the outside the address of their node.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from svc._core.cidr import Cidr
from svc.model.pool import CROSS_SUBNET, pool_errors
from svc.model.resource import Resource

_ROUTED: Final = {"vxlanMode": CROSS_SUBNET, "natOutgoing": True}


def pools_of(ranges: Sequence[str]) -> list[Resource]:
    """Return a pool for each range, which must be a CIDR."""
    return [_pool(Cidr(text)) for text in ranges]


def _pool(cidr: Cidr) -> Resource:
    return Resource("IPPool", {"name": f"default-ipv{cidr.version}-ippool"}, {"cidr": str(cidr), **_ROUTED})


def problems(ranges: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield why the ranges cannot be pools, with the fix."""
    found = [(text, *each) for text in ranges for each in _problems_of(text)]
    yield from ((f"--pool {text!r} {problem}", remedy) for text, problem, remedy in found)
    if not found and len({Cidr(text).version for text in ranges}) < len(ranges):
        yield (
            f"--pool {', '.join(ranges)} has two pools of one IP version",
            "give at most one of each; make others with `svcctl pool apply`",
        )


def _problems_of(text: str) -> Iterator[tuple[str, str]]:
    try:
        (pool,) = pools_of([text])
    except ValueError as error:
        yield f"is not a CIDR ({error})", "give ADDRESS/LENGTH, such as 10.244.0.0/16"
        return
    for each in pool_errors(pool):
        has_option = "blockSize" not in each.remedy
        yield each.problem, each.remedy if has_option else "give a larger range, or use `svcctl pool apply` with a blockSize"
