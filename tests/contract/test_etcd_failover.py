"""Failover between etcd members, and broken connections. No write is lost or applied twice."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.churn import churning
from harness.etcd import TIMEOUT_SECONDS, Cluster, cluster
from harness.etcd_sessions import HANDLES, create, session
from harness.ipam import wait_for_stable_generations
from harness.proxy import proxy
from svc.datastore.api import StoreError

pytestmark = pytest.mark.server

KILLS = 2
OPERATIONS = 60  # per worker, before the first kill and after each one
BREAKS = 40
LOSSES = ((True, False), (True, False), (False, True), (False, False))  # of replies, of requests


@pytest.fixture
def three_members(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, 3) as running:
        yield running


def test_no_write_is_lost_or_repeated_if_leaders_are_killed(three_members: Cluster) -> None:
    """Counters and keys match the replies to all workers, although leaders are killed. No worker gets an error."""
    with session(three_members.endpoints) as sound, churning(three_members.endpoints, sound) as churn:
        churn.go_on(OPERATIONS)
        for _ in range(KILLS):
            leader = three_members.leader()
            leader.kill()
            churn.go_on(OPERATIONS)
            three_members.restart(leader)


def test_no_write_is_lost_or_repeated_if_connections_break(tmp_path: Path) -> None:
    """Requests and replies are lost at random, then the connections break."""
    chance = random.Random("breaks")
    pause = threading.Event()
    with cluster(tmp_path) as server, session(server.endpoints) as sound, proxy(server.members[0].ports[0]) as relay:
        with churning(f"http://{relay.authority}", sound) as churn:
            for _ in range(BREAKS):
                churn.go_on(3)
                relay.discard_replies, relay.discard_requests = chance.choice(
                    [(True, False), (True, False), (False, True), (False, False)]
                )
                pause.wait(0.02 * chance.random())
                relay.cut()
                relay.discard_replies = relay.discard_requests = False
                relay.cut()
        assert relay.connections > BREAKS


def test_wrong_endpoints_are_skipped(three_members: Cluster) -> None:
    """One reachable member is sufficient if the cluster has a leader. All other endpoints are wrong."""
    live = three_members.members[0].url
    for endpoints in (
        f"http://127.0.0.1:1,http://127.0.0.1:2,{live}",
        f"{live},http://127.0.0.1:1",
        f"http://nowhere.invalid:1,{live}",
    ):
        with session(endpoints) as store:
            for number in range(3):
                entry = create(store, f"{len(endpoints)}.{number}")
                assert store.get(entry.key) == entry


def test_session_works_again_after_the_loss_of_a_majority(three_members: Cluster) -> None:
    """Without a majority, a write is an error. When the majority is back, the same session works."""
    with session(three_members.endpoints) as store:
        create(store, "before")
        for member in three_members.members[1:]:
            member.kill()
        with pytest.raises(StoreError, match=r"etcd at .* does not answer|not known"):
            create(store, "meanwhile")
        for member in three_members.members[1:]:
            member.start()
        for member in three_members.members:
            member.wait()
        create(store, "after")
        names = {key.removeprefix(HANDLES) for key, _ in three_members.stored(HANDLES)}
        assert {"before", "after"} <= names <= {"before", "meanwhile", "after"}


def test_generations_of_a_member_without_a_majority_change(three_members: Cluster) -> None:
    """The member is reachable but receives no changes, so generations must change to invalidate caches."""
    with session(three_members.members[0].url) as store:
        create(store, "h")
        wait_for_stable_generations(store, "IPPool")
        for member in three_members.members[1:]:
            member.kill()
        until = time.monotonic() + TIMEOUT_SECONDS
        while store.generations(("IPPool",)) == store.generations(("IPPool",)):
            assert time.monotonic() < until, "the generations did not change, so caches would stay valid"
            time.sleep(0.05)
