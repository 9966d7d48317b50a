"""The removal of everything that svc-routes made: in the kernel, in the datastore, and the file with the MTU."""

from collections.abc import Collection

from svc.datastore.api import Backend
from svc.ipam.pools import read_pools
from svc.model.errors import SvcError
from svc.model.pool import LOAD_BALANCER
from svc.routes import trace_file
from svc.routes.inputs import HANDLES
from svc.routes.kernel_part import KernelPart
from svc.routes.mtu_file import remove_mtu
from svc.routes.own_marks import OwnMarks, remove_marks
from svc.routes.own_node import OwnNode
from svc.routes.settings import Settings
from svc.routes.store_notes import remove_notes


def clean_node(settings: Settings, kernel: KernelPart) -> frozenset[str]:
    """Remove what is on the node, for which no datastore is needed. Return the kinds of tunnels. Raise SvcError, OSError."""
    kinds = frozenset(kernel.own_tunnels())
    kernel.clean()
    remove_mtu(settings.state_dir)
    trace_file.remove(settings.state_dir)
    return kinds


def clean_datastore(settings: Settings, backend: Backend, kernel: KernelPart, had: Collection[str]) -> list[str]:
    """Remove the registered address, and release the addresses of own tunnels. Return sentences about what stays.

    `had` are the kinds of tunnels of which the node had a device of svc-routes. The addresses of tunnels stay if another
    program routes, because they may be its own, and if another one has assigned them. Raise SvcError, OSError."""
    node, marks = OwnNode(backend, settings.names, settings.node), OwnMarks(settings.state_dir)
    if marks.registered:
        node.unregister(marks.registered)
        marks.forget_registered()
    traces = kernel.traces([pool.cidr for pool in read_pools(backend).all if LOAD_BALANCER not in pool.allowed_uses])
    if traces:
        return [f"the addresses of tunnels stay assigned, because another program routes: {traces[0]}"]
    own = marks.tunnels.union(had) - marks.adopted
    kept = [text for kind in HANDLES if kind in own and (text := _released(node, kind))]
    foreign = [kind for kind in HANDLES if kind not in own and node.held(kind)]
    if not kept:
        remove_marks(settings.state_dir)
        remove_notes(settings.state_dir)
    return [*kept, *(f"the address of tunnel {kind!r} stays assigned: another program has assigned it" for kind in foreign)]


def _released(node: OwnNode, kind: str) -> str:
    """Release the address of a tunnel. Return why it stays, if it does."""
    try:
        node.release(kind)
    except SvcError as failure:
        return f"the address of tunnel {kind!r} stays assigned: {failure}"
    return ""
