"""Lanes of the admission queue: what a call waits behind, and how many workers a datastore may have."""

import json
from typing import Any

import pytest

from svc.agent.lanes import GUARANTEED, SHARED, Busy, Lane, lane_of

EMBEDDED: dict[str, Any] = {"datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
ETCD: dict[str, Any] = {"etcd_endpoints": "http://10.0.0.1:2379"}


def lane(verb: str = "ADD", **netconf: Any) -> Lane:
    return lane_of(verb, json.dumps(netconf).encode())


def begun(busy: Busy, wanted: Lane, most: int) -> int:
    """How many of so many may begin."""
    count = 0
    while count < most and not busy.is_full(wanted):
        busy.change(wanted, 1)
        count += 1
    return count


def test_a_store_on_this_node_has_a_lane_of_its_own() -> None:
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
def test_whatever_else_is_waited_for_makes_it_another_lane(changes: dict[str, Any]) -> None:
    found = lane(**EMBEDDED | changes)
    assert found.name == "ADD-remote"
    assert found.store != "embedded"


def test_each_datastore_has_its_lanes() -> None:
    other = lane(etcd_endpoints="http://10.0.0.2:2379")
    assert lane(**ETCD) != other
    assert lane(**ETCD, name="another network") == lane(**ETCD)
    assert lane("DEL", **ETCD).store == lane(**ETCD).store


def test_status_waits_behind_no_datastore() -> None:
    assert lane("STATUS", **ETCD).store == ""


def test_one_datastore_has_half_of_the_workers_at_most() -> None:
    busy = Busy()
    add, delete = lane(**ETCD), lane("DEL", **ETCD)
    adds = begun(busy, add, 200)
    assert adds < SHARED, "some are left for its DELs"
    assert begun(busy, delete, 200) == SHARED - adds


def test_another_datastore_always_has_its_share() -> None:
    busy = Busy()
    begun(busy, lane(**ETCD), 200)
    begun(busy, lane("DEL", **ETCD), 200)
    assert begun(busy, lane("DEL", etcd_endpoints="http://10.0.0.2:2379"), 200) == GUARANTEED
    assert begun(busy, lane(**EMBEDDED), 200) == 8
    assert begun(busy, lane("STATUS", **ETCD), 3) == 3


def test_what_has_ended_is_forgotten() -> None:
    busy = Busy()
    busy.change(lane(**ETCD), 1)
    busy.change(lane(**ETCD), -1)
    assert busy == Busy()
