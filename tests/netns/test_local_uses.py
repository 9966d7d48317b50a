"""The addresses that a node itself uses, which svcctl ipam release refuses."""

from contextlib import closing
from pathlib import Path

import pytest

from harness.enter_netns import entered
from harness.journal_rows import record
from harness.netns import Netns, run
from svc._core.cidr import Address
from svc.admin.ipam_check.local_uses import used_here
from svc.attach.journal import Journal
from svc.attach.record import AttachmentId


@pytest.fixture
def uses_of(tmp_path: Path) -> dict[Address, str]:
    """Make interfaces, routes and a journal, and return what uses addresses there."""
    with Netns("uses") as netns, closing(Journal(tmp_path / "journal.db")) as journal:
        for command in (
            "link add uplink up type bridge",
            "address add 10.0.0.1/24 dev uplink",
            "address add fd00::1/64 dev uplink nodad",
            "route add 10.65.0.1/32 dev uplink",
            "route add fd65::1/128 dev uplink",
            "route add 10.65.0.2/32 via 10.0.0.2 dev uplink",
            "route add 10.66.0.0/26 dev uplink",
        ):
            run("ip", "-n", netns.name, *command.split())
        journal.begin(record())
        ended = record(AttachmentId("net", "c2", "eth0"), host_name="svc1")
        ended.addresses = ["10.65.0.9"]
        journal.begin(ended)
        journal.record_pending_release(ended)
        with entered(netns):
            return used_here(tmp_path)


LOOK = "`ip address` and `ip route` name the interface; end its container, or delete it if no container uses it"


def test_addresses_of_the_node_are_in_use(uses_of: dict[Address, str]) -> None:
    """A route with a gateway leads to another node, and a pending release is not of a live attachment."""
    found = {str(address): what for address, what in uses_of.items()}
    assert found == {
        "10.0.0.1": f"an interface of this node has it: {LOOK}",
        "fd00::1": f"an interface of this node has it: {LOOK}",
        "10.65.0.1": f"a route of this node has it: {LOOK}",
        "fd65::1": f"a route of this node has it: {LOOK}",
        "10.65.0.7": f"attachment {record().handle} of this node has it for pod ns/pod: "
        "end the container, or repeat its DEL if the runtime does not know it",
    }
