"""A node in the test's own process: the verbs on a temporary state directory, with faults on demand."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

from harness.add_requests import netconf
from harness.audit import IpamAudit
from harness.blocking import run_blocking
from harness.fault_injection import Faults, FaultyBackend, FaultyJournal
from harness.netns import Netns
from harness.node import POOL4, POOL6
from svc._core.cidr import Address
from svc._core.netns import own_netns_identity
from svc.attach.add import add
from svc.attach.check import check
from svc.attach.context import Context
from svc.attach.delete import delete
from svc.attach.record import AttachmentId, SessionKey
from svc.attach.recovery import Teardowns, interrupted
from svc.attach.request import AddRequest, Attachment, Sandbox, open_sandbox
from svc.call_trace import CallTrace
from svc.datastore.api import Backend, Conflict, Create
from svc.datastore.embedded import EmbeddedStore
from svc.model.endpoint import Workload
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.model.result import Result
from svc.names import DEFAULT

WHERE = SessionKey({"kind": "embedded"}, "node1")


class Host:
    """A node. The calling thread must be inside `netns`, which acts as the host. The threads that it starts stay inside too.

    By default its datastore is embedded. `where` has the settings of another one. If that is the Kubernetes API, an ADD reads
    its pod there."""

    def __init__(self, directory: Path, netns: Netns, store: Backend | None = None, where: SessionKey = WHERE) -> None:
        self.netns = netns
        self.directory = directory
        self.where = where
        self.faults = Faults()
        self.journal_faults = Faults()
        self.trace = CallTrace("test", "DEBUG")
        self.store = store or EmbeddedStore(directory / "store.db")
        with patch("svc.attach.context.Journal", lambda path: FaultyJournal(path, self.journal_faults)):
            self.context = Context(lambda _: DEFAULT, directory, lambda *_: FaultyBackend(self.store, self.faults))
        self._apply_pools()

    def _apply_pools(self) -> None:
        """Create a pool of each family, unless an earlier host on this directory has done so."""
        for name, cidr in (("pool4", POOL4), ("pool6", POOL6)):
            pool = Resource("IPPool", {"name": name}, {"cidr": cidr})
            with suppress(Conflict):
                self.store.write([Create(ResourceKey("IPPool", name), pool)])

    # the verbs

    def add(
        self, sandbox: Sandbox | None, *, container: str = "c1", ifname: str = "eth0", versions: tuple[int, ...] = (4, 6),
        address: str = "", workload: Workload | None = None, pod_uid: str = "",
    ) -> Result:  # fmt: skip
        wanted, owner = Address(address) if address else None, workload or Workload(container)
        network = netconf(versions, **self._pod_access())
        request = AddRequest(_id(container, ifname), owner, sandbox, self.where, network, wanted, pod_uid=pod_uid)
        return run_blocking(add(self.context, request, self.trace))

    def delete(
        self, sandbox: Sandbox | None, *, container: str = "c1", ifname: str = "eth0", workload: Workload | None = None
    ) -> None:
        own = Attachment(_id(container, ifname), workload or Workload(container), sandbox, self.where)
        delete(self.context, own, CallTrace("test"))

    def check(self, sandbox: Sandbox, result: Result, *, container: str = "c1", ifname: str = "eth0") -> None:
        check(self.context, _id(container, ifname), sandbox, result, self.trace)

    def recover(self) -> int:
        """Run recovery, as an agent does after its start. Return the number of attachments that it could not tear down."""
        teardowns = Teardowns(self.context)
        return sum(not teardowns.recover(record, CallTrace("test")) for record in interrupted(self.context))

    # state

    def heal(self) -> None:
        self.faults.heal()
        self.journal_faults.heal()

    def audit(self) -> IpamAudit:
        return IpamAudit.read(self.store, self.context.journal)

    def links(self) -> dict[str, int]:
        """Return the interfaces of svc in the host, with their indexes."""
        return {link["ifname"]: link["ifindex"] for link in self.netns.ip("link") if link["ifname"].startswith("svc")}

    def left_over(self) -> list[str]:
        """Return everything that an attachment would leave."""
        routes = [*self.netns.ip("route"), *self.netns.ip("-6", "route")]
        return [
            *self.audit().entries(),
            *(f"link {name}" for name in self.links()),
            *(f"route {route['dst']} dev {route['dev']}" for route in routes if str(route.get("dev", "")).startswith("svc")),
        ]

    def _pod_access(self) -> dict[str, Any]:
        """Return the fields of a network whose pods are in its datastore, as examples/kubernetes.conflist has them."""
        access = {name: text for name, text in self.where.datastore.items() if name != "kind"}
        return {"policy": True, "orchestrator": tuple(access.items())} if self.where.datastore["kind"] == "orch" else {}

    def close(self) -> None:
        self.context.kernel.host().close()  # that of this thread, which continues
        self.context.close()
        self.store.close()

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextmanager
def opened(netns: Netns) -> Iterator[Sandbox]:
    """Open the namespace as a call supplies it."""
    sandbox = open_sandbox(netns.path, -1, own_netns_identity())
    try:
        yield sandbox
    finally:
        os.close(sandbox.fd)


def _id(container: str, ifname: str) -> AttachmentId:
    return AttachmentId("net", container, ifname)
