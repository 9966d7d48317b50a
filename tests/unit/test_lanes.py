"""Lanes of the admission queue: the lane of each call, and the workers that one datastore may have."""

import json
from typing import Any

import pytest

from svc.agent.lanes import GUARANTEED, SHARED, Busy, Lane, lane_of

EMBEDDED: dict[str, Any] = {"datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
ETCD: dict[str, Any] = {"etcd_endpoints": "http://10.0.0.1:2379"}


def lane(verb: str = "ADD", **netconf: Any) -> Lane:
    return lane_of(verb, json.dumps(netconf).encode())


def begin_up_to(busy: Busy, wanted: Lane, most: int) -> int:
    """Begin at most this number of calls, and return how many could begin."""
    count = 0
    while count < most and not busy.is_full(wanted):
        busy.change(wanted, 1)
        count += 1
    return count


def test_store_on_this_node_has_its_own_lane() -> None:
    assert lane(**EMBEDDED) == Lane("ADD-local", "embedded")


@pytest.mark.parametrize(
    "changes",
    [
        {"ipam": {"type": "host-local"}},
        {"policy": {"type": "orch"}, "orch": {"kubeconfig": "/etc/kubeconfig"}},
        {"orch": {"orch_api_root": "http://10.0.0.1:8080"}},
    ],
    ids=["plugin", "kubeconfig", "api root"],
)
def test_calls_that_also_use_other_services_have_another_lane(changes: dict[str, Any]) -> None:
    found = lane(**EMBEDDED | changes)
    assert found.name == "ADD-remote"
    assert found.store != "embedded"


def test_each_datastore_has_its_lanes() -> None:
    other = lane(etcd_endpoints="http://10.0.0.2:2379")
    assert lane(**ETCD) != other
    assert lane(**ETCD, name="another network") == lane(**ETCD)
    assert lane("DEL", **ETCD).store == lane(**ETCD).store


def test_status_does_not_wait_for_a_datastore() -> None:
    assert lane("STATUS", **ETCD).store == ""


def test_one_datastore_has_at_most_half_of_the_workers() -> None:
    busy = Busy()
    add, delete = lane(**ETCD), lane("DEL", **ETCD)
    adds = begin_up_to(busy, add, 200)
    assert adds < SHARED, "no worker is left for the DELs"
    assert begin_up_to(busy, delete, 200) == SHARED - adds


def test_another_datastore_always_has_its_share() -> None:
    busy = Busy()
    begin_up_to(busy, lane(**ETCD), 200)
    begin_up_to(busy, lane("DEL", **ETCD), 200)
    assert begin_up_to(busy, lane("DEL", etcd_endpoints="http://10.0.0.2:2379"), 200) == GUARANTEED
    assert begin_up_to(busy, lane(**EMBEDDED), 200) == 8
    assert begin_up_to(busy, lane("STATUS", **ETCD), 3) == 3


def test_ended_calls_are_not_counted() -> None:
    busy = Busy()
    busy.change(lane(**ETCD), 1)
    busy.change(lane(**ETCD), -1)
    assert busy == Busy()
