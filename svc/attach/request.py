"""Requests of the runtime after validation, in the terms of svc."""

import os

from svc._core import netns
from svc._core.cidr import Address
from svc.attach.context import Context
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.sessions import DatastoreSession
from svc.attach.sources.base import AddressSource
from svc.attach.sources.own import POOLS_OF_SVC
from svc.call_trace import CallTrace
from svc.model.endpoint import Workload
from svc.model.errors import CallerError, Code
from svc.model.shortage import shortage
from svc.netconf.args import Labels
from svc.netconf.netconf import NetConf
from svc.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Sandbox:
    """An open network namespace: its descriptor (owned by the call), its path, and its (device, inode)."""

    fd: int
    path: str
    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attachment as a call describes it. `source` is the source of the network's present configuration.

    `sandbox` is None if the sandbox does not exist, or if another main plugin does the wiring.
    """

    id: AttachmentId
    workload: Workload
    sandbox: Sandbox | None
    where: SessionKey
    source: AddressSource = field(default=POOLS_OF_SVC, kw_only=True)


@dataclass(frozen=True, slots=True)
class AddRequest(Attachment):
    """One ADD to the network of `netconf`. `address` is the requested address, if any.

    Annotations of the pod may change the addresses if the features of the network allow it.
    """

    netconf: NetConf
    address: Address | None = None
    mtu: int = 0
    pod_uid: str = ""
    intent: int = 0  # generation of the row in the journal, if the call has waited in another process
    resumable: bool = False  # whether the call may continue in another process

    @property
    def labels(self) -> Labels:
        """The labels of a bare container."""
        return () if self.workload.pod else self.netconf.labels


@dataclass(frozen=True, slots=True)
class AddCall:
    """An ADD in progress, with the session of its datastore. `restored`: it found an interface without a row before."""

    context: Context
    session: DatastoreSession
    request: AddRequest
    trace: CallTrace
    restored: bool = False


def open_sandbox(path: str, received_fd: int, own: tuple[int, int]) -> Sandbox:
    """Return the network namespace of a call, by the received descriptor or by its path.

    `own` is the identity of the host's namespace. Raise CallerError if it is not a network namespace, or is the host's own.
    """
    fd = received_fd if received_fd >= 0 else _open(path)
    try:
        identity = netns.netns_identity(fd)
    except (OSError, ValueError) as failure:
        os.close(fd)
        raise shortage(failure) or CallerError(
            f"CNI_NETNS {path!r} is not a network namespace",
            details="give the path of the sandbox's network namespace, such as /var/run/netns/NAME",
            code=Code.INVALID_ENVIRONMENT,
        ) from failure
    if identity == own:
        os.close(fd)
        raise CallerError(
            f"CNI_NETNS {path!r} is the host's own network namespace",
            details="host-network workloads need no network plugin; give the sandbox's namespace",
            code=Code.INVALID_NETNS,
        )
    return Sandbox(fd, path, identity)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as failure:
        raise shortage(failure) or CallerError(
            f"CNI_NETNS {path!r} cannot be opened: {getattr(failure, 'strerror', failure)}",
            details="the sandbox is gone, or the path is wrong",
            code=Code.INVALID_ENVIRONMENT,
        ) from failure
