"""svcctl ipam on every datastore: usage of pools and blocks, owners of addresses, and settings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import configure, free, put_block, put_pool, put_reservation, take, wait_for_stable_generations
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc._core.cidr import Address
from svc.admin.owner_attributes import SetOwner, set_owners
from svc.datastore.api import Backend
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.ipam.settings import read_settings
from svc.model.errors import PeerError
from svc.model.ipam import IpamConfig
from svc.model.keys import IPAM_CONFIG

pytestmark = ON_EACH_DATASTORE

POOL = "10.65.0.0/30"  # one block
WEB = {"namespace": "default", "pod": "web-0"}


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    """Fill a pool of one block: `node1` has its affinity, `node2` borrows from it, and one address has no node."""
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", POOL, blockSize=30)
        site.add_node("node1")
        site.add_node("node2")
        held = {"node1": WEB, "node2": {"type": "vxlanTunnelAddress"}, "": {}}
        for number, (node, owner) in enumerate(held.items()):
            attributes = owner | {"node": node} if node else dict(owner)
            IpamService(store, node or "node1").assign(Assign(f"net.c{number}", attributes))
        yield store
    site.clear()


@pytest.fixture
def cli(site: Site, home: Path, store: Backend) -> Cli:
    return cli_on(site, home)


def document(cli: Cli, *arguments: str) -> Any:
    return json.loads(cli.prints("ipam", "show", "-o", "json", *arguments))


def test_usage_of_pools_and_blocks_is_shown(cli: Cli, store: Backend) -> None:
    """Orphaned blocks are listed only with the other blocks."""
    put_reservation(store, "res", "10.65.0.3/32")
    put_block(store, "10.99.0.0/30", None, ["net.lost"])
    table = [
        "GROUPING  NAME   CIDR          NODE   IPS TOTAL  IPS IN USE  IPS RESERVED  IPS FREE",
        "IP Pool   pool4  10.65.0.0/30                 4     3 (75%)       1 (25%)    0 (0%)",
        "Block            10.65.0.0/30  node1          4     3 (75%)       1 (25%)    0 (0%)",
        "Block            10.99.0.0/30                 4     1 (25%)        0 (0%)   3 (75%)",
    ]
    lines = [" ".join(line.split()) for line in cli.prints("ipam", "show").splitlines()]
    assert lines == [" ".join(line.split()) for line in table[:2]]
    assert cli.prints("ipam", "show", "--show-blocks").splitlines() == table
    pool = {"name": "pool4", "cidr": POOL, "total": 4, "inUse": 3, "reserved": 1, "free": 0}
    assert document(cli) == [pool]
    shown, lost = document(cli, "--show-blocks")
    block = {"cidr": POOL, "affinity": "host:node1", "total": 4, "inUse": 3, "reserved": 1, "free": 0}
    assert shown == pool | {"blocks": [block]}
    assert [block["affinity"] for block in lost["blocks"]] == [None]


def test_numbers_are_exact_up_to_a_network_of_64_bits(cli: Cli, store: Backend) -> None:
    """Larger numbers are rounded."""
    put_pool(store, "pool4", "10.64.0.0/12", blockSize=30)
    put_pool(store, "six", "fd65::/64")
    put_pool(store, "vast", "fd66::/48")
    totals = {line.split()[2]: line.split()[4] for line in cli.prints("ipam", "show").splitlines()[1:]}
    assert totals == {"pool4": "1048576", "six": str(2**64), "vast": "1.2089e+24"}


def test_borrowed_addresses_are_shown(cli: Cli) -> None:
    """An address is borrowed if its block has another node's affinity. Allocations without a node are counted."""
    assert cli.prints("ipam", "show", "--show-borrowed").splitlines() == [
        "IP         BORROWING-NODE  BLOCK         BLOCK OWNER  TYPE                ALLOCATED-TO",
        "10.65.0.1  node2           10.65.0.0/30  host:node1   vxlanTunnelAddress  net.c1",
        "Not told: 1 allocations that name no node",
    ]
    assert document(cli, "--show-borrowed") == [
        {
            "ip": "10.65.0.1", "node": "node2", "block": POOL, "affinity": "host:node1",
            "type": "vxlanTunnelAddress", "allocatedTo": "net.c1",
        }
    ]  # fmt: skip


def test_handle_and_owners_of_an_address_are_shown(cli: Cli, store: Backend) -> None:
    """An address may have no owner, and one in cooldown has no handle."""
    address = Address("10.65.0.0")
    held = [
        "IP 10.65.0.0 is in use",
        "Handle ID: net.c0",
        "Active owner:",
        "  namespace: default",
        "  node: node1",
        "  pod: web-0",
    ]
    assert cli.prints("ipam", "show", "--ip", str(address), "--show-borrowed").splitlines() == held
    set_owners(store, address, "net.c0", alternate=SetOwner({"pod": "next"}))
    assert cli.prints("ipam", "show", "--ip", str(address)).splitlines() == [*held, "Alternate owner:", "  pod: next"]
    assert document(cli, "--ip", str(address)) == [
        {
            "ip": str(address), "inUse": True, "handle": "net.c0", "activeOwner": WEB | {"node": "node1"},
            "alternateOwner": {"pod": "next"},
        }
    ]  # fmt: skip
    assert cli.prints("ipam", "show", "--ip", "10.65.0.2").splitlines()[2:] == ["Active owner: none"]
    for unassigned in ("10.65.0.3", "192.0.2.1"):
        assert cli.prints("ipam", "show", "--ip", unassigned) == f"{unassigned} is not assigned\n"
        assert document(cli, "--ip", unassigned) == [{"ip": unassigned, "inUse": False}]
    configure(store, IpamConfig(cooldown_seconds=60))
    free(IpamService(store, "node1"), "net.c0")
    assert "and rests" in cli.fails("ipam", "show", "--ip", str(address))
    assert f"is IPv4-mapped: give {address}" in cli.fails("ipam", "show", "--ip", f"::ffff:{address}", code=2)


def test_settings_are_shown_and_changed(cli: Cli, store: Backend) -> None:
    """Settings without an option do not change. A node applies the new settings."""
    assert cli.prints("ipam", "show", "--show-configuration").splitlines() == [
        "PROPERTY                      VALUE",
        "strictAffinity                false",
        "autoAllocateBlocks            true",
        "maxBlocksPerHost              0",
        "kubeVirtVMAddressPersistence  Enabled",
        "ipCooldownSeconds             0",
    ]
    printed = cli.changes("ipam", "configure", "--strictaffinity", "true", "--max-blocks-per-host", "1")
    assert printed == "strictAffinity set to true\nmaxBlocksPerHost set to 1\n"
    assert cli.changes("ipam", "configure", "--strictaffinity=true", "--ip-cooldown-seconds=30").splitlines() == [
        "strictAffinity is true",
        "ipCooldownSeconds set to 30",
    ]
    cli.changes("ipam", "configure", "--auto-allocate-blocks", "false", "--kubevirt-ip-persistence", "Disabled")
    assert read_settings(store) == IpamConfig(True, False, 1, "Disabled", 30)
    assert document(cli, "--show-configuration") == [
        {
            "strictAffinity": True, "autoAllocateBlocks": False, "maxBlocksPerHost": 1,
            "kubeVirtVMAddressPersistence": "Disabled", "ipCooldownSeconds": 30,
        }
    ]  # fmt: skip
    wait_for_stable_generations(store, IPAM_CONFIG)
    with pytest.raises(PeerError, match="may not claim another"):
        take(IpamService(store, "node2"), "net.late")


def test_too_large_numbers_are_refused(cli: Cli, store: Backend) -> None:
    """The error names field, value and bound, even if the datastore could store the number."""
    for option, field, bound in (
        ("max-blocks-per-host", "maxBlocksPerHost", 1000000),
        ("ip-cooldown-seconds", "ipCooldownSeconds", 1200),
    ):
        for number in (bound + 1, 2**31, 2**64 - 1, 10**20 - 1):
            printed = cli.fails("ipam", "configure", "--strictaffinity", "true", f"--{option}", str(number))
            assert printed == f"Error: invalid IPAM settings: {field} = {number} is more than {bound}: give 0 to {bound}\n"
    assert read_settings(store) == IpamConfig()


def test_contradictory_settings_are_refused(cli: Cli, store: Backend) -> None:
    """The error names the fix. svcctl does not change valid settings of the same command either."""
    printed = cli.fails("ipam", "configure", "--ip-cooldown-seconds", "5", "--max-blocks-per-host", "2")
    assert (
        "maxBlocksPerHost = 2 needs strictAffinity: give --strictaffinity true as well, or give --max-blocks-per-host 0"
        in printed
    )
    printed = cli.fails("ipam", "configure", "--auto-allocate-blocks", "false")
    assert "autoAllocateBlocks = false needs strictAffinity: give --strictaffinity true as well" in printed
    assert read_settings(store) == IpamConfig()
