"""The texts about plans and runs, and the differences that they show."""

from types import SimpleNamespace
from typing import Any

import pytest

from svc.ctl.upgrade_text import plan_text, run_text, verified_text
from svc.upgrade.object_states import differences, shown
from svc.upgrade.plan import Plan
from svc.upgrade.procedure import Findings
from svc.upgrade.run_record import Run
from svc.upgrade.step import Look


def plan(*looks: Look, found: dict[str, Any] | None = None, blockers: tuple[str, ...] = (), target: str = "2") -> Plan:
    """Return a plan with steps one, two..."""
    names = ("one", "two", "three")
    steps: list[Any] = [SimpleNamespace(name=name, destroys="", can_undo=True) for name in names]
    return Plan("p", {}, Findings("p", found or {}, blockers, "1", target), list(zip(steps, looks, strict=False)))


def subject(namespace: str) -> dict[str, str]:
    return {"kind": "ServiceAccount", "name": "svc", "namespace": namespace}


def test_items_of_lists_without_names_of_their_own() -> None:
    """Two subjects may have one name. Only the order is a difference of the whole list."""
    first, second = subject("a"), subject("b")
    assert list(differences({"s": [first]}, {"s": [first, second]})) == [("s[+]", None, second)]
    assert list(differences({"s": [first, second]}, {"s": [second]})) == [("s[-]", first, None)]
    rules = [{"verbs": ["get"]}, {"verbs": ["list"]}]
    assert list(differences({"r": rules}, {"r": [rules[0], {"verbs": ["watch"]}]})) == [
        ("r[-]", {"verbs": ["list"]}, None), ("r[+]", None, {"verbs": ["watch"]}),
    ]  # fmt: skip
    assert list(differences({"r": rules}, {"r": rules[::-1]})) == [("r", rules, rules[::-1])]
    assert list(differences([{"name": "x", "v": 1}], [{"name": "x", "v": 2}])) == [("[x].v", 1, 2)]


def test_only_what_a_secret_keeps_is_hidden() -> None:
    def secret(value: str) -> dict[str, Any]:
        return {"kind": "Secret", "metadata": {"labels": {"l": value}, "annotations": {"a": value}}, "data": {"d": value}}

    assert list(shown(secret("1"), secret("2"))) == [
        ("metadata.labels.l", "1", "2"), ("metadata.annotations.a", "(hidden)", "(hidden)"), ("data.d", "(hidden)", "(hidden)"),
    ]  # fmt: skip


def test_steps_without_anything_to_do_are_counted() -> None:
    text = plan_text(plan(Look(True), Look(False, changes=(("f", None, "x"),)), Look(True, notes=("three: see this",))))
    assert text.splitlines() == [
        "procedure: p",
        "from 1 to 2",
        "1 of 3 steps have nothing to do (-o json lists them)",
        "two: to do",
        '  f: none -> "x"',
        "three: done",
        "  note: see this",
        "next: 1 of 3 steps, by `svcctl upgrade apply` with the same options",
    ]


def test_next_is_what_the_user_can_do() -> None:
    asks = plan_text(plan(Look(False, asks=("one: an edit",))))
    assert asks.endswith("with the same options and, with your consent, --ack one")
    assert "  asks for --ack one: an edit" in asks
    assert plan_text(plan(Look(True))).endswith("`svcctl upgrade verify` with the same options checks the result")
    assert plan_text(plan(blockers=("no",))).endswith("blocked: no\nnext: correct what blocks, and make the plan again")


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ([], ["fact: none"]), (["a"], ["fact: a"]), (["a", "b"], ["fact:", "  a", "  b"]),
        ("", ["fact: unknown"]), ("x", ["fact: x"]),
    ],
)  # fmt: skip
def test_what_is_found(value: Any, lines: list[str]) -> None:
    assert plan_text(plan(Look(True), found={"fact": value})).splitlines()[2 : 2 + len(lines)] == lines


def test_long_values_are_shown_where_they_differ() -> None:
    same = "x" * 500
    text = plan_text(plan(Look(False, changes=(("f", f"{same}old", f"{same}new"), ("g[+]", None, {"a": 1})))))
    assert f'  f: ...{"x" * 20}old" -> ...{"x" * 20}new"' in text.splitlines()
    assert '  g[+]: {"a": 1}' in text.splitlines()


def test_version_that_stays_and_target_without_one() -> None:
    assert "version 1, which stays" in plan_text(plan(Look(True), target="1"))
    assert verified_text(plan(Look(True))) == "verified: all 1 steps to 2 are done"
    assert verified_text(plan(Look(True), target="")) == "verified: all 1 steps are done"


def test_open_run_names_both_ways() -> None:
    run = Run("r", "p", "", "2", {}, "running", {"a": "done", "b": "skipped"}, {"etcd revision": "7"})
    assert run_text(run, "TABLE").splitlines() == [
        "run r: p, from unknown to 2: running",
        "etcd revision: 7",
        "TABLE",
        "1 steps had nothing to do (-o json lists them)",
        "next: `svcctl upgrade apply` with the options of this run goes on, and `svcctl upgrade undo` goes back",
    ]
