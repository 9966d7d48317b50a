"""The removal of everything that svc-routes made: in the kernel, in the datastore, and the file with the MTU."""

from svc.datastore.api import Backend
from svc.ipam.pools import read_pools
from svc.model.errors import SvcError
from svc.model.pool import LOAD_BALANCER
from svc.routes import trace_file
from svc.routes.inputs import HANDLES
from svc.routes.kernel_part import KernelPart
from svc.routes.mtu_file import remove_mtu
from svc.routes.own_marks import remove_marks
from svc.routes.own_node import OwnNode
from svc.routes.settings import Settings


def clean_node(settings: Settings, kernel: KernelPart) -> None:
    """Remove what is on the node, for which no datastore is needed. Raise SvcError, OSError."""
    kernel.clean()
    remove_mtu(settings.state_dir)
    trace_file.remove(settings.state_dir)


def clean_datastore(settings: Settings, backend: Backend, kernel: KernelPart) -> list[str]:
    """Release the addresses of tunnels, whose devices are gone. Return sentences about what stays. Raise SvcError, OSError.

    The addresses of tunnels stay if another program routes: they may be its own."""
    traces = kernel.traces([pool.cidr for pool in read_pools(backend).all if LOAD_BALANCER not in pool.allowed_uses])
    if traces:
        return [f"the addresses of tunnels stay assigned, because another program routes: {traces[0]}"]
    node, kept = OwnNode(backend, settings.names, settings.node), []
    for kind in HANDLES:
        try:
            node.release(kind)
        except SvcError as failure:
            kept.append(f"the address of tunnel {kind!r} stays assigned: {failure}")
    if not kept:
        remove_marks(settings.state_dir)
    return kept
