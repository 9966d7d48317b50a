"""Rounds of a program that makes way, with a kernel that only notes what is asked of it."""

from pathlib import Path
from typing import Any

import pytest

from svc._core.cidr import Cidr
from svc.routes import trace_file
from svc.routes.applied import Applied
from svc.routes.aside import Aside
from svc.routes.mode import Mode
from svc.routes.settings import AUTO, Settings
from svc.routes.wanted import Nat, Wanted

POOL = Cidr("10.0.0.0/16")
TRACE = "a device"


class Kernel:
    """The calls of KernelPart."""

    def __init__(self, unwanted: int = 0) -> None:
        self.unwanted = unwanted
        self.may_delete: list[bool] = []

    def traces(self, _: object) -> list[str]:
        return [TRACE]

    def stand_aside(self, *_: object, may_delete: bool, **__: Any) -> Applied:
        self.may_delete.append(may_delete)
        return Applied(unwanted=self.unwanted)

    def own_routes(self) -> int:
        return 7


def made(kernel: Kernel, folder: Path) -> Aside:
    settings = Settings({"kind": "orch"}, "n1", mode=AUTO, state_dir=folder)
    return Aside(settings, kernel, Mode(AUTO))  # type: ignore[arg-type]


@pytest.mark.parametrize(("unwanted", "rounds"), [(0, [False, True, False]), (2, [False, True, False, True])])
def test_each_round_tells_how_many_routes_have_to_go(tmp_path: Path, unwanted: int, rounds: list[bool]) -> None:
    """A round reports 0 as well: the rule about large deletions begins again at 0. The first one may delete in any case."""
    kernel, asked = Kernel(unwanted), []

    def may_delete(own: int, doomed: int, _: float) -> bool:
        asked.append((own, doomed))
        return True

    aside = made(kernel, tmp_path)
    for now in (0.0, 60.0):
        report = aside.round(Wanted({}), [POOL], may_delete, now)
    assert (asked, kernel.may_delete, report.remaining) == ([(7, unwanted)] * 2, rounds, 7)


def test_networks_of_nat_are_removed_when_deletions_are_allowed(tmp_path: Path) -> None:
    """Once for each set of networks, also if no route has to go."""
    kernel = Kernel()
    aside = made(kernel, tmp_path)
    first, second = (Wanted({}, nat=Nat(frozenset(pools))) for pools in ([POOL], []))
    for wanted, is_allowed in ((first, True), (first, True), (second, False), (second, True), (second, True)):
        aside.round(wanted, [POOL], lambda *_, is_allowed=is_allowed: is_allowed, 0.0)
    assert kernel.may_delete == [False, True, False, False, False, True, False]


def test_traces_are_written_with_each_check(tmp_path: Path) -> None:
    aside = made(Kernel(), tmp_path)
    assert aside.is_needed([POOL], 0.0)
    assert trace_file.read(tmp_path) == (TRACE,)
    trace_file.remove(tmp_path)
    assert aside.is_needed([POOL], 1.0)
    assert trace_file.read(tmp_path) == ()
    assert aside.is_needed([POOL], 60.0)
    assert trace_file.read(tmp_path) == (TRACE,)
