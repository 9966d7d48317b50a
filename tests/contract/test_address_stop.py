"""The stop of releases after a mass of leaks, and its acknowledgement, on each datastore beside a real API server."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.address_cluster import GRACE, AddressCluster, address_cluster, collecting
from harness.address_races import CountingAddresses
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import Site
from harness.kube import Kube
from harness.polling import wait_until
from harness.running_controller import Running
from harness.svcctl import Cli, cli_on
from svc.admin.release_record import MASS, SETBACK, acknowledgement_annotation, record_of
from svc.controllers.configuration import Configuration
from svc.controllers.node.addresses.part import CONDITION
from svc.controllers.node.addresses.setbacks import Seen
from svc.datastore.orch.client import Client
from svc.names import DEFAULT

pytestmark = pytest.mark.server

LEAKS = 11  # one more than an hour may have in a small cluster


@pytest.fixture
def cluster(site: Site, kube: Kube, fast_looks: None) -> Iterator[AddressCluster]:
    with address_cluster(site, kube) as made:
        yield made


@pytest.fixture
def cli(site: Site, home: Path, cluster: AddressCluster) -> Cli:
    return cli_on(site, home)


def reason(made: Running) -> str:
    """Return the reason of the condition; empty if there is none."""
    return next((each.reason for each in made.shared.conditions.all() if each.kind == CONDITION), "")


def leak(cluster: AddressCluster, count: int, first: int = 0) -> list[str]:
    """Assign addresses to pods that do not exist."""
    return [cluster.assign(f"{DEFAULT.network}.c{number}", f"gone{number}") for number in range(first, first + count)]


def free(cluster: AddressCluster, addresses: list[str]) -> bool:
    return not any(map(cluster.holder, addresses))


def test_too_many_releases_stop_and_none_is_made(cluster: AddressCluster, client: Client) -> None:
    leaked = leak(cluster, LEAKS)
    with collecting(cluster, client) as made:
        wait_until(lambda: reason(made) == MASS)
        made.part.begin_round()
        wait_until(lambda: made.part.waiting == 0)
    assert all(map(cluster.holder, leaked))


def test_stop_outlives_the_leader(cluster: AddressCluster, client: Client) -> None:
    leaked = leak(cluster, LEAKS)
    with collecting(cluster, client) as made:
        wait_until(lambda: reason(made) == MASS)
    cluster.release(f"{DEFAULT.network}.c0")  # now there are fewer than the limit
    with collecting(cluster, client) as made:
        wait_until(lambda: reason(made) == MASS)
        assert all(map(cluster.holder, leaked[1:]))


def test_new_leader_shows_a_stop_without_new_leaks_until_it_is_acknowledged(
    cluster: AddressCluster, client: Client, cli: Cli
) -> None:
    leaked = leak(cluster, LEAKS)
    with collecting(cluster, client) as made:
        wait_until(lambda: reason(made) == MASS)
    for number in range(LEAKS):
        cluster.release(f"{DEFAULT.network}.c{number}")
    assert free(cluster, leaked)
    with collecting(cluster, client, leads=False) as made:
        assert CONDITION in made.shared.conditions.with_awaited()[1]
        made.lead()
        wait_until(lambda: reason(made) == MASS)
        cli.changes("ipam", "release", "--acknowledge", "--yes")
        wait_until(lambda: reason(made) == "Running")
        made.election.resign()
        wait_until(lambda: reason(made) == "")  # the next leader may know of another stop


def test_acknowledgement_lets_the_releases_go_on(cluster: AddressCluster, client: Client, cli: Cli) -> None:
    leaked = leak(cluster, LEAKS)
    assert "no stop awaits acknowledgement" in cli.fails("ipam", "release", "--acknowledge", "--yes")
    with collecting(cluster, client) as made:
        wait_until(lambda: reason(made) == MASS)
        cli.changes("ipam", "release", "--acknowledge", "--dry-run")
        assert acknowledgement_annotation(DEFAULT) not in cluster.annotations()
        assert "is acknowledged" in cli.changes("ipam", "release", "--acknowledge", "--yes")
        wait_until(lambda: free(cluster, leaked))
        wait_until(lambda: reason(made) == "Running")
        more = leak(cluster, LEAKS, 100)
        wait_until(lambda: reason(made) == MASS)  # the acknowledgement is of one stop
        assert 1 <= sum(map(bool, map(cluster.holder, more))) <= LEAKS


def test_releases_of_an_hour_add_up_across_leaders(cluster: AddressCluster, client: Client) -> None:
    first = leak(cluster, 6)
    with collecting(cluster, client):
        wait_until(lambda: free(cluster, first))
    second = leak(cluster, 6, 10)
    with collecting(cluster, client) as made:
        wait_until(lambda: reason(made) == MASS)
    assert all(map(cluster.holder, second))
    assert sum(record_of(DEFAULT, cluster.settings()).released.values()) == 6


def test_addresses_of_a_node_that_is_gone_do_not_count(
    cluster: AddressCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.controllers.gone_nodes.QUIET_SECONDS", 0.2)
    monkeypatch.setattr("svc.controllers.node.addresses.part._LOST_SECONDS", 0.05)
    cluster.add_node("node2")
    leaked = [cluster.assign(f"{DEFAULT.network}.d{number}", f"gone{number}", "node2") for number in range(2 * LEAKS)]
    tunnel = cluster.assign("ipip-tunnel-addr-node2", node="node2", type="ipipTunnelAddress")
    cluster.remove_node("node2")
    with collecting(cluster, client, grace=3600.0) as made:
        wait_until(lambda: free(cluster, [*leaked, tunnel]))
        assert reason(made) == "Running"


def stops_for_good(made: Running, cluster: AddressCluster, leaked: list[str]) -> None:
    """Wait for the stop, and end the grace period then: nothing is released."""
    part = made.part
    assert isinstance(part, CountingAddresses)
    wait_until(lambda: reason(made) == SETBACK)
    made.live.replace(Configuration(leak_grace_seconds=GRACE))
    looks = part.looks + 5
    wait_until(lambda: part.looks >= looks and len(part._candidates.confirmed(time.monotonic(), GRACE)) > 0)
    assert reason(made) == SETBACK
    assert all(map(cluster.holder, leaked))


@pytest.mark.parametrize("path", ["/api/v1/pods", "/api/v1/nodes"])
def test_list_of_the_api_server_that_ran_backwards_stops(
    cluster: AddressCluster, client: Client, proxy: ApiProxy, path: str
) -> None:
    """After a restore the API server has an earlier revision, and perhaps not all objects."""
    leaked = leak(cluster, 1)
    with collecting(cluster, client, grace=3600.0, make=CountingAddresses) as made:
        wait_until(lambda: made.part.is_ready)
        older = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
        proxy.arm(Order(Fate.ANSWERED, f"GET {path}[?].*watch=", times=2, status=410))
        body = json.dumps(older).encode()
        proxy.arm(Order(Fate.ANSWERED, f"GET {path}[?].*limit=", times=2, status=200, body=body))  # one may be interrupted
        proxy.hang_up()
        stops_for_good(made, cluster, leaked)


def test_datastore_that_ran_backwards_stops(cluster: AddressCluster, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    leaked = leak(cluster, 1)
    with collecting(cluster, client, grace=3600.0, make=CountingAddresses) as made:
        wait_until(lambda: made.part.is_ready)
        setbacks = made.part._setbacks  # type: ignore[attr-defined]
        seen = setbacks._look()
        later = Seen(replace(seen.position, setbacks=seen.position.setbacks + 1), seen.setbacks)
        monkeypatch.setattr(setbacks, "_look", lambda: later)
        made.part.begin_round()
        stops_for_good(made, cluster, leaked)


def test_damaged_record_releases_nothing(cluster: AddressCluster, client: Client, cli: Cli) -> None:
    leaked = leak(cluster, 1)
    cluster.annotate("released-addresses", "x")
    with collecting(cluster, client) as made:
        wait_until(lambda: made.part.waiting == 1)
        assert "cannot be read" in cli.fails("ipam", "release", "--acknowledge", "--yes")
        assert cluster.holder(leaked[0])
        cluster.annotate("released-addresses", "")
        wait_until(lambda: free(cluster, leaked))


def test_missing_settings_release_nothing(cluster: AddressCluster, client: Client) -> None:
    leaked = leak(cluster, 1)
    cluster.delete_settings()
    with collecting(cluster, client) as made:
        wait_until(lambda: made.part.waiting == 1)
        assert cluster.holder(leaked[0])
