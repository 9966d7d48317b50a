"""A move that is killed at each write, and continued each time by another process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import EtcdSite, OrchSite
from harness.move_sites import Sites, contents, furnish, move, open_sites, sessions
from svc.admin.ipam_check.observation import Place
from svc.datastore.orch.store import OrchStore
from svc.ipam.requests import Release
from svc.ipam.service import IpamService
from svc.model.keys import HandleKey
from svc.move import marks, steps

pytestmark = [pytest.mark.server, pytest.mark.slow]


class Killed(BaseException):
    """The end of a process: nothing of svc handles it."""


class Writes:
    """Counts writes of sessions, and ends the process after one of them."""

    def __init__(self, last: int) -> None:
        self._left = last
        self.count = 0

    def carry_out(self, write: Callable[[], Any]) -> Any:
        if self._left <= 0:
            raise Killed
        self._left -= 1
        self.count += 1
        done = write()
        if self._left == 0:
            raise Killed
        return done

    def watch(self, place: Place) -> None:
        """Count each write of a session: a transaction of etcd, a request to the API server."""
        if not isinstance(place.backend, OrchStore):
            write = place.backend.write
            place.backend.write = lambda *args, **options: self.carry_out(lambda: write(*args, **options))  # type: ignore[method-assign]
            return
        answer = place.backend.client._answer

        def counted(request: Any) -> Any:
            return answer(request) if request.is_read else self.carry_out(lambda: answer(request))

        place.backend.client._answer = counted  # type: ignore[method-assign]


@pytest.fixture
def sites(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    with open_sites(etcd_site, orch_site, tmp_path) as made:
        furnish(etcd_site, orch_site, made.etcd.backend, ("web", "db-0"))
        yield made


@pytest.fixture
def process(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path) -> Callable[[int], Any]:
    """Return the sessions of a process that is killed after a number of writes."""

    @contextmanager
    def start(last: int) -> Iterator[tuple[Sites, Writes]]:
        writes = Writes(last)
        with ExitStack() as stack:
            made = stack.enter_context(sessions(etcd_site, orch_site, tmp_path))
            for place in (made.etcd, made.kube):
                writes.watch(place)
            yield made, writes

    return start


def until_done(process: Callable[[int], Any], step: Callable[[Sites], None]) -> int:
    """Repeat a step in processes that are killed after their first write. Return the number of kills."""
    for kills in range(1000):
        try:
            with process(1) as (sites, _):
                step(sites)
            return kills
        except Killed:
            continue
    raise AssertionError("the move makes no progress")


def test_a_move_is_killed_after_each_write(sites: Sites, process: Callable[[int], Any]) -> None:
    """A kill before a write leaves what a kill after the one before it leaves."""
    before = contents(sites.etcd)
    there = until_done(process, lambda made: move(made.etcd, made.kube, "there", made.archive, 1))
    documents = steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)
    assert steps.compare(documents, sites.kube) == []
    back = until_done(process, lambda made: move(made.kube, made.etcd, "back", made.archive, 1))
    assert contents(sites.etcd) == before
    print(f"{there} kills on the way there, {back} on the way back")
    assert there > 20
    assert back > 3


def test_a_move_with_parallel_writes_is_killed(sites: Sites, process: Callable[[int], Any]) -> None:
    """What other threads have written when the process ends is found by the next one."""
    before = contents(sites.etcd)
    for last in (2, 5, 9, 12, 1000):
        try:
            with process(last) as (made, _):
                move(made.etcd, made.kube, "there", made.archive, 16)
        except Killed:
            assert last < 1000
    documents = steps.export_at_one_revision(sites.etcd).decoded(sites.etcd.names)
    assert steps.compare(documents, sites.kube) == []
    move(sites.kube, sites.etcd, "back", sites.archive)
    assert contents(sites.etcd) == before


def test_an_undo_is_killed_after_each_write(sites: Sites, process: Callable[[int], Any]) -> None:
    before, empty = contents(sites.etcd), contents(sites.kube)
    total = count(process)
    for last in range(2, total, 7):
        with process(last) as (made, _), pytest.raises(Killed):
            move(made.etcd, made.kube, "there", made.archive, 1)
        until_done(process, lambda made: steps.undo(made.etcd, made.kube, "there", made.archive))
        assert (contents(sites.etcd), contents(sites.kube)) == (before, empty)
        assert marks.present(sites.kube) is None
        assert not marks.is_locked(marks.present(sites.etcd) or pytest.fail("ClusterInformation is gone"))


def count(process: Callable[[int], Any]) -> int:
    """Return the number of writes until all documents are imported, and undo them."""
    with process(1000) as (made, writes):
        marks.lock(made.etcd, made.kube, "count")
        steps.admit(made.etcd, made.kube, "count", made.archive)
        documents = steps.export_at_one_revision(made.etcd).decoded(made.etcd.names)
        steps.import_(documents, made.kube, 1)
        steps.move_endpoints(documents, made.kube, 1)
        found = writes.count
        steps.undo(made.etcd, made.kube, "count", made.archive)
    return int(found)


def test_an_undo_restores_the_predecessor(sites: Sites, process: Callable[[int], Any]) -> None:
    """A part of its content is replaced when the move back is undone, because an address was released since."""
    before = contents(sites.etcd)
    move(sites.etcd, sites.kube, "there", sites.archive)
    IpamService(sites.kube.backend, "node2").release(Release("net.c-db-0"))
    after = contents(sites.kube)
    with process(4) as (made, _), pytest.raises(Killed):
        move(made.kube, made.etcd, "back", made.archive, 1)
    until_done(process, lambda made: steps.undo(made.kube, made.etcd, "back", made.archive))
    assert (contents(sites.etcd), contents(sites.kube)) == (before, after)
    mark = marks.mark_of(sites.etcd.names, marks.present(sites.etcd))
    assert mark is not None
    assert (mark.run, mark.state) == ("there", marks.LEFT)
    move(sites.kube, sites.etcd, "again", sites.archive)
    assert sites.etcd.backend.find(HandleKey("net.c-db-0")) is None
