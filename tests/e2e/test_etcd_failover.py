"""Several etcd members, some of them dead, and connections that break: nothing is lost and nothing is done twice."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.churn import churning
from harness.etcd import PATIENCE, Cluster, cluster
from harness.etcd_sessions import HANDLES, create, session
from harness.ipam import settle
from harness.proxy import proxy
from svc.datastore.api import StoreError

KILLS = 2
OPERATIONS = 60  # of each worker after each kill, and before the first one
BREAKS = 40
LOSSES = ((True, False), (True, False), (False, True), (False, False))  # of answers, of requests


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, 3) as running:
        yield running


def test_killed_leaders_lose_and_double_nothing(three: Cluster) -> None:
    """Counters and keys are as every worker was answered, also if the leader died during a write; no worker saw an error."""
    with session(three.endpoints) as sound, churning(three.endpoints, sound) as churn:
        churn.go_on(OPERATIONS)
        for _ in range(KILLS):
            leader = three.leader()
            leader.kill()
            churn.go_on(OPERATIONS)
            three.restart(leader)


def test_broken_connections_lose_and_double_nothing(tmp_path: Path) -> None:
    """Requests and answers are lost at random, then the connections break."""
    dice = random.Random("breaks")
    pause = threading.Event()
    with cluster(tmp_path) as server, session(server.endpoints) as sound, proxy(server.members[0].ports[0]) as way:
        with churning(f"http://{way.authority}", sound) as churn:
            for _ in range(BREAKS):
                churn.go_on(3)
                way.discard_replies, way.discard_requests = dice.choice(
                    [(True, False), (True, False), (False, True), (False, False)]
                )
                pause.wait(0.02 * dice.random())
                way.cut()
                way.discard_replies = way.discard_requests = False
                way.cut()
        assert way.connections > BREAKS


def test_two_dead_members_are_passed_over(three: Cluster) -> None:
    """One that is reachable is enough, as long as the cluster has a leader: here all endpoints but one are wrong."""
    live = three.members[0].url
    for endpoints in (
        f"http://127.0.0.1:1,http://127.0.0.1:2,{live}",
        f"{live},http://127.0.0.1:1",
        f"http://nowhere.invalid:1,{live}",
    ):
        with session(endpoints) as store:
            for number in range(3):
                entry = create(store, f"{len(endpoints)}.{number}")
                assert store.get(entry.key) == entry


def test_a_majority_lost_is_an_error_and_then_none(three: Cluster) -> None:
    """Nothing is written without a majority; with it, the same session goes on."""
    with session(three.endpoints) as store:
        create(store, "before")
        for member in three.members[1:]:
            member.kill()
        with pytest.raises(StoreError, match=r"etcd at .* does not answer|not known"):
            create(store, "meanwhile")
        for member in three.members[1:]:
            member.start()
        for member in three.members:
            member.wait()
        create(store, "after")
        names = {key.removeprefix(HANDLES) for key, _ in three.stored(HANDLES)}
        assert {"before", "after"} <= names <= {"before", "meanwhile", "after"}


def test_a_server_without_its_cluster_is_no_witness(three: Cluster) -> None:
    """It is reachable, and hears of no change: what it says of generations is not trusted."""
    with session(three.members[0].url) as store:
        create(store, "h")
        settle(store, "IPPool")
        for member in three.members[1:]:
            member.kill()
        until = time.monotonic() + PATIENCE
        while store.generations(("IPPool",)) == store.generations(("IPPool",)):
            assert time.monotonic() < until, "a cache would be trusted for ever"
            time.sleep(0.05)
