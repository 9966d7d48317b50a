"""The core's messages about routes to a real kernel beside pyroute2, and comparisons of the kernel part of svc-routes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from pyroute2 import IPRoute  # type: ignore[import-untyped]  # noqa: TID251

from bench._core_case import Case, measure
from bench.core import figure
from bench.measurement import Figure
from bench.options import Options
from harness.enter_netns import entered
from harness.netns import Netns
from svc._core import netns, rtnl
from svc._core.cidr import Cidr
from svc.names import DEFAULT
from svc.routes.kernel_part import KernelPart
from svc.routes.wanted import Direct, Wanted

ROUTES, ROUNDS = 4000, 3
POOL, LAN = Cidr("10.64.0.0/12"), Cidr("192.168.0.0/16")
PROTOCOL = 83
GOAL = 10  # times as fast as pyroute2


def run(_: Options) -> Iterator[Figure]:
    """Yield the figures. pyroute2 takes seconds for a round."""
    with ExitStack() as stack:
        stack.enter_context(entered(stack.enter_context(_node())))
        socket = stack.enter_context(netns.Socket())
        peer = stack.enter_context(IPRoute())
        part = KernelPart(DEFAULT)
        stack.callback(part.close)
        (index,) = peer.link_lookup(ifname="up0")
        for case in (
            Case(f"write {ROUTES} routes", _writer(socket, index), _peer_writer(peer, index), "pyroute2", GOAL),
            Case(f"read {ROUTES} routes", _reader(socket), _peer_reader(peer), "pyroute2", GOAL),
            Case(f"compare {ROUTES} routes", _comparison(part), _peer_reader(peer), "pyroute2 (reads them)", 2),
        ):
            yield figure(case, measure(case, ROUNDS))


def _node() -> Netns:
    node = Netns("routes")
    for command in ("link add up0 type veth peer name up1", "link set up0 up", "link set up1 up"):
        node.run("ip", *command.split())
    node.run("ip", "address", "add", f"{LAN.address(1)}/{LAN.length}", "dev", "up0")
    return node


def _blocks() -> Iterator[tuple[Cidr, Any]]:
    for number in range(ROUTES):
        yield POOL.block(number, 26), LAN.address(2 + number // 4)


def _writer(socket: netns.Socket, index: int) -> Callable[[], object]:
    def write() -> None:
        batch = rtnl.Batch()
        for block, gateway in _blocks():
            batch.add_route(index, block.first.packed, block.length, gateway=gateway.packed, protocol=PROTOCOL, replace=True)
        assert socket.execute_each(batch) == []

    return write


def _peer_writer(peer: Any, index: int) -> Callable[[], object]:
    def write() -> None:
        for block, gateway in _blocks():
            peer.route("replace", dst=str(block), gateway=str(gateway), oif=index, proto=PROTOCOL)

    return write


def _peer_reader(peer: Any) -> Callable[[], object]:
    return lambda: list(peer.get_routes(family=rtnl.AF_INET))


def _reader(socket: netns.Socket) -> Callable[[], object]:
    def read() -> list[dict[str, Any]]:
        request = rtnl.Batch()
        request.dump_routes(rtnl.AF_INET)
        return [rtnl.unpack_route(message) for message in socket.query(request)]

    return read


def _comparison(part: KernelPart) -> Callable[[], object]:
    wanted = Wanted({block: Direct(gateway) for block, gateway in _blocks()})

    def compare() -> None:
        part.forget()
        assert len(part.apply(wanted, may_delete=True).routes) == ROUTES

    return compare
