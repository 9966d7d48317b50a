"""Rollback of ADDs that the kernel refuses: nothing is left in the kernel or in the datastore."""

import dataclasses
import errno
import os
from collections.abc import Callable

import pytest

from harness.inprocess import Host, opened
from harness.netns import Netns, run
from svc._core import netns
from svc.attach.context import Context
from svc.attach.record import DELETING
from svc.attach.request import Sandbox
from svc.dataplane import plan
from svc.dataplane import wire as wiring
from svc.model.endpoint import Workload, host_interface
from svc.model.errors import CallerError, Code, PeerError, SvcError
from svc.names import DEFAULT

pytestmark = pytest.mark.root

HOST_NAME = host_interface(DEFAULT, Workload("c1"), "eth0")


def test_existing_route_leaves_nothing(host: Host, sandbox: Sandbox, pod: Netns) -> None:
    """Another interface of the host has the address, which is not in the datastore."""
    run("ip", "link", "add", "other", "type", "bridge")
    run("ip", "link", "set", "other", "up")
    run("ip", "route", "add", "10.65.0.7/32", "dev", "other")
    before = host.netns.ip("route")
    with pytest.raises(PeerError, match=r"the host already has a route to 10\.65\.0\.7"):
        host.add(sandbox, address="10.65.0.7")
    assert host.left_over() == []
    assert pod.links() == []
    assert host.netns.ip("route") == before
    run("ip", "link", "delete", "other")
    host.check(sandbox, host.add(sandbox, address="10.65.0.7"))


@pytest.mark.parametrize("host_name_too", [False, True])
def test_existing_interface_name_leaves_nothing(host: Host, sandbox: Sandbox, pod: Netns, host_name_too: bool) -> None:
    """The existing interface is kept, because svc did not create it."""
    pod.ip("link", "add", "eth0", "type", "bridge")
    if host_name_too:
        run("ip", "link", "add", HOST_NAME, "type", "bridge")
    with pytest.raises(CallerError) as caught:
        host.add(sandbox)
    assert caught.value.code == Code.INTERFACE_EXISTS
    assert host.audit().entries() == []
    assert pod.links() == ["eth0"]
    pod.ip("link", "delete", "eth0")
    host.check(sandbox, host.add(sandbox))


def test_stale_interface_is_replaced(host: Host, sandbox: Sandbox) -> None:
    """It belongs to an earlier sandbox of the same pod."""
    run("ip", "link", "add", HOST_NAME, "type", "bridge")
    host.check(sandbox, host.add(sandbox))
    assert host.audit().disagreements(host.links()) == []


def test_interface_that_is_created_repeatedly_leaves_nothing(
    host: Host, sandbox: Sandbox, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program creates it after each removal. The runtime gets an error, and has nothing to clean up."""
    remove = Context.remove_interface

    def remove_and_restore(context: Context, name: str) -> None:
        remove(context, name)
        run("ip", "link", "add", HOST_NAME, "type", "bridge")

    run("ip", "link", "add", HOST_NAME, "type", "bridge")
    monkeypatch.setattr(Context, "remove_interface", remove_and_restore)
    with pytest.raises(PeerError, match="keeps coming back"):
        host.add(sandbox)
    assert host.audit().entries() == []
    assert pod.links() == []


@pytest.mark.parametrize("what", ["closed", "no namespace"])
def test_invalid_descriptor_leaves_nothing(host: Host, sandbox: Sandbox, what: str) -> None:
    """The sandbox may be deleted before the call runs."""
    fd = os.open("/dev/null", os.O_RDONLY)
    if what == "closed":
        os.close(fd)
    with pytest.raises(SvcError) as caught:
        host.add(dataclasses.replace(sandbox, fd=fd))
    assert caught.value.code == Code.KERNEL
    if what != "closed":
        os.close(fd)
    assert host.left_over() == []


def test_sandbox_that_is_deleted_during_the_call_leaves_nothing(host: Host, pod: Netns) -> None:
    """The descriptor keeps the namespace, so the ADD succeeds. The path no longer exists at the DEL."""
    with opened(pod) as sandbox:
        pod.delete()
        host.add(sandbox)
    host.delete(None)
    assert host.left_over() == []


@pytest.mark.parametrize("batch", ["host_batch", "sandbox_batch"])
def test_refused_message_leaves_nothing(
    host: Host, sandbox: Sandbox, pod: Netns, monkeypatch: pytest.MonkeyPatch, batch: str
) -> None:
    """The kernel has already carried out all other messages of the batch."""
    make = getattr(plan, batch)

    def refused(*arguments: object) -> object:
        batch = make(*arguments)
        batch.set_link(0x7FFFFFF0, up=True)  # no such link
        return batch

    monkeypatch.setattr(plan, batch, refused)
    with pytest.raises(PeerError, match="the kernel refused: set link"):
        host.add(sandbox)
    assert host.left_over() == []
    assert pod.links() == []


def test_unanswered_creation_leaves_nothing(host: Host, sandbox: Sandbox, pod: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown whether the pair was created, so the rollback looks for its name."""
    create = plan.host_batch

    def unanswered(wiring: plan.VethSpec, index: int, peer_index: int, ns_fd: int, has_ipv6: bool) -> object:
        host.context.kernel.host().execute(create(wiring, index, peer_index, ns_fd, has_ipv6))
        raise TimeoutError(errno.ETIMEDOUT, "no answer from the kernel")

    monkeypatch.setattr(plan, "host_batch", unanswered)
    with pytest.raises(PeerError, match="no answer from the kernel"):
        host.add(sandbox)
    assert host.left_over() == []
    assert pod.links() == []


def test_unwritable_sysctl_leaves_nothing(host: Host, sandbox: Sandbox, pod: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fd: int, items: list[tuple[str, str]], *, folder: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", items[0][0])

    monkeypatch.setattr(netns, "write_sysctls", failing)
    with pytest.raises(PeerError, match="Read-only file system: the agent needs writable sysctls"):
        host.add(sandbox)
    assert host.left_over() == []
    assert pod.links() == []


def test_interface_that_cannot_be_removed_keeps_its_address(
    host: Host, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses the batch of the sandbox, and then each removal. The caller gets the first error."""
    with monkeypatch.context() as patch:
        patch.setattr(plan, "sandbox_batch", failing("the sandbox refuses"))
        patch.setattr(wiring, "delete_link", failing("the removal is refused"))
        patch.setattr(host.context.reaper, "remove", failing("the removal is refused"))
        with pytest.raises(PeerError, match="the sandbox refuses"):
            host.add(sandbox)
    assert list(host.links()) == [HOST_NAME]
    (record,) = host.audit().records
    assert (record.state, sorted(host.audit().allocations)) == (DELETING, sorted(record.addresses))
    assert host.recover() == 0
    assert host.left_over() == []


def failing(words: str) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise PeerError(words)

    return fail
