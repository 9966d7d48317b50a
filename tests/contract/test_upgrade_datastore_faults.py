"""A move by the procedure that is killed at each of its writes, or gets an error as the answer of each."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import EtcdSite, OrchSite
from harness.etcd import Member, cluster
from harness.move_procedure import MoveProcedure, furnished
from harness.move_sites import contents
from harness.upgrade_faults import FAULTS, WRITES, Killer, killing
from svc.datastore.api import StoreError
from svc.datastore.etcd.store import EtcdStore
from svc.move import marks, steps

pytestmark = pytest.mark.server

QUICK = "reply lost"  # the fault that is tried with every change
PODS = ("web", "db-0")
BEFORE_THE_SWITCH = 12  # writes from the end of a move
Site = Callable[[bool], AbstractContextManager[MoveProcedure]]


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.02)


@pytest.fixture
def fresh(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path) -> Site:
    """Return what opens the datastores, with content in etcd."""

    @contextmanager
    def opened(back: bool) -> Iterator[MoveProcedure]:
        with furnished(etcd_site, orch_site, tmp_path, PODS) as made:
            if back:
                made.move()
            yield made

    return opened


def has_arrived(procedure: MoveProcedure, *, back: bool) -> None:
    """Require that the content is in the target, which is in use, and that the source is locked."""
    source, target = (procedure.sites.kube, procedure.sites.etcd) if back else (procedure.sites.etcd, procedure.sites.kube)
    documents = steps.export_at_one_revision(source).decoded(source.names)
    assert steps.compare(documents, target) == []
    assert steps.differing_pools(documents, target) == []
    states = [marks.mark_of(place.names, marks.present(place)) for place in (source, target)]
    assert [mark and mark.state for mark in states] == [marks.LEFT, marks.ARRIVED]
    infos = [marks.present(place) for place in (source, target)]
    assert [info and marks.is_locked(info) for info in infos] == [True, False]


def killed_at(fresh: Site, killer: Killer, number: int, when: str, *, back: bool) -> None:
    with fresh(back) as procedure:
        words = procedure.words("apply", "--timeout", "0s", back=back)
        assert killer.run(*words, kill_at=number, when=when).returncode == -9, number
        resumed = killer.run(*words)
        assert resumed.returncode == 5, (number, resumed)
        has_arrived(procedure, back=back)


def number_of_writes(fresh: Site, killer: Killer, *, back: bool) -> int:
    with fresh(back) as procedure:
        before = contents(procedure.sites.kube if back else procedure.sites.etcd)
        done = killer.run(*procedure.words("apply", "--timeout", "0s", back=back))
        assert done.returncode == 5, done
        has_arrived(procedure, back=back)
        procedure.roll(back=back)
        assert killer.run(*procedure.words("apply", back=back)).returncode == 0
        assert len(before) > 20
    with fresh(back) as procedure:
        killer.run(*procedure.words("apply", "--timeout", "0s", back=back))
        return killer.writes


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.long
@pytest.mark.parametrize("part", [pytest.param(0, id="some"), pytest.param(1, id="all")])
def test_killed_at_each_write(fresh: Site, killer: Killer, part: int, *, back: bool) -> None:
    """All resume to the same end. A kill before a write leaves what a kill after the one before it leaves."""
    total = number_of_writes(fresh, killer, back=back)
    chosen: Sequence[int] = range(1, total + 1) if part else range(2, total + 1, total // 3)
    killed_at(fresh, killer, 1, "before", back=back)
    for number in chosen:
        killed_at(fresh, killer, number, "after", back=back)
    print(f"{len(chosen) + 1} kills at {total} writes")
    assert total > 20


@pytest.mark.long
@pytest.mark.parametrize("stride", [5, 1], ids=["some", "all"])
def test_undo_is_killed_at_each_write(fresh: Site, killer: Killer, stride: int) -> None:
    """The source is unlocked, and the target empty, after the next run."""
    total, kills = number_of_writes(fresh, killer, back=False), 0
    for number in itertools.count(1, stride):
        with fresh(False) as procedure:
            place = procedure.sites.kube
            before, empty = contents(procedure.sites.etcd), contents(place)
            assert killer.run(*procedure.words("apply", "--timeout", "0s"), kill_at=total - BEFORE_THE_SWITCH).returncode == -9
            assert marks.present(place) is not None
            killed = killer.run(*procedure.words("undo"), kill_at=number, when="after")
            resumed = killed if killed.returncode == 0 else killer.run(*procedure.words("undo"))
            assert resumed.returncode == 0, (number, killed, resumed)
            assert (contents(procedure.sites.etcd), contents(place), marks.present(place)) == (before, empty, None), number
        if killed.returncode == 0:
            break
        assert killed.returncode == -9, (number, killed)
        kills += 1
    print(f"{kills} kills at {killer.writes} writes of undo")
    assert kills > 5


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_each_write_fails_once(fresh: Site, orch_site: OrchSite, name: str) -> None:
    """Every write to the API server gets this answer at first. The runs end clean or blocked, and the last one is done."""
    with fresh(False) as procedure, ApiProxy(orch_site.kube) as proxy:
        procedure.run("apply", "--timeout", "0s", server=proxy.url)
        paths = [call for call in proxy.calls if re.search(WRITES, call) and "/leases/" not in call]
    fault = FAULTS[name]
    with fresh(False) as procedure, ApiProxy(orch_site.kube) as proxy:
        for path in dict.fromkeys(without_run(path) for path in paths):
            pattern = rf"^(?!.*dryRun){path}(\?|$)"
            for _ in range(sum(without_run(each) == path for each in paths)):
                proxy.arm(Order(fault.fate, pattern, status=fault.status, body=fault.body))
                proxy.arm(Order(Fate.LATE, pattern))
        statuses = list[int]()
        while 5 not in statuses and len(statuses) < 3 * len(paths):
            done = procedure.run("apply", "--timeout", "0s", server=proxy.url)
            statuses.append(done.exit_code)
            assert done.exit_code in (3, 5), (done.output, done.exception)
        assert statuses[-1] == 5
        proxy.disarm()
        has_arrived(procedure, back=False)
        procedure.roll()
        procedure.succeeds("apply")
    print(f"{len(paths)} writes, {len(statuses)} runs")


def without_run(path: str) -> str:
    """Return a pattern for a path, without the name of the run."""
    return re.sub(r"svc-upgrade-[^/]+", r"svc-upgrade-[^/]+", re.escape(path).replace(r"\-", "-"))


@pytest.mark.parametrize("is_applied", [False, True], ids=["never sent", "reply lost"])
def test_each_transaction_of_etcd_fails_once(fresh: Site, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool) -> None:
    """On the way back, etcd is the target: every second transaction has no answer."""
    commit, count = EtcdStore.write, 0

    def failing(self: EtcdStore, *given: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count % 2:
            if is_applied:
                commit(self, *given, **options)
            raise StoreError("no answer, by the test")
        return commit(self, *given, **options)

    with fresh(True) as procedure:
        before = contents(procedure.sites.kube)
        statuses = list[int]()
        with monkeypatch.context() as patch:
            patch.setattr(EtcdStore, "write", failing)
            while 5 not in statuses and len(statuses) < 100:
                statuses.append(procedure.run("apply", "--timeout", "0s", back=True).exit_code)
                assert statuses[-1] in (3, 5)
        assert contents(procedure.sites.kube) == before
        has_arrived(procedure, back=True)
    print(f"{count} transactions, {len(statuses)} runs")


@pytest.mark.parametrize("pages", [0, 2], ids=["before the first page", "between two pages"])
def test_leader_of_etcd_is_lost_during_the_export(
    orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """Another member answers, at the same revision: nothing is lost, and nothing is there twice."""
    monkeypatch.setattr("svc.datastore.etcd.store.PAGE", 5)
    with cluster(tmp_path, 3) as running, furnished(EtcdSite(running), orch_site, tmp_path, PODS) as procedure:
        read, lost = EtcdStore._pages, list[Member]()

        def losing(self: EtcdStore, request: Any, budget: Any) -> Iterator[Any]:
            found = iter(read(self, request, budget))
            for number in itertools.count():
                if number == pages and not lost:
                    lost.append(running.leader())
                    lost[0].kill()
                if (page := next(found, None)) is None:
                    return
                yield page

        history = EtcdStore.history

        def exported(self: EtcdStore) -> Iterator[tuple[int, str, bytes]]:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(EtcdStore, "_pages", losing)
                yield from history(self)

        monkeypatch.setattr(EtcdStore, "history", exported)
        done = procedure.run("apply", "--timeout", "0s")
        assert done.exit_code == 5, (done.output, done.exception)
        assert len(lost) == 1
        running.restart(lost[0])
        monkeypatch.setattr(EtcdStore, "history", history)
        has_arrived(procedure, back=False)
