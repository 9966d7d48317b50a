"""Alerts, dashboard and runbooks: every metric and every section that they name exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import prometheus
from harness.prometheus import promtool
from svc.agent.metric_families import BY_SAMPLE, FAMILIES
from svc.controllers import metric_families as controllers
from svc.metrics import SECONDS

__all__ = ["promtool"]

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "svc.rules.yml"
TESTS = RULES.with_name("svc.rules.test.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "svc-agents.json"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
GUIDE = ROOT / "docs" / "metrics.md"

NAMES = {BY_SAMPLE[sample].full_name + sample.removeprefix(BY_SAMPLE[sample].name) for sample in BY_SAMPLE}
EVERY = [*FAMILIES, *controllers.FAMILIES]
LABELS = {family.full_name: {*family.labels, "le", "job", "instance"} for family in EVERY}
CONTROLLERS = {family.full_name for family in controllers.FAMILIES}
CONTROLLERS |= {"ipam_allocations_gc_reclamations"}  # a metric of Calico's kube-controllers that is used

NAME = re.compile(r"(?<![\w:/.-])(?:svc|process|ipam)_\w+")
SELECTED = re.compile(r"((?:svc|process)_\w+)\{([^}]*)\}")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def queries() -> Iterator[str]:
    """Yield the expressions of the rules and of the dashboard."""
    yield from (rule["expr"] for rule in rules())
    board = json.loads(DASHBOARD.read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
    yield from (variable["query"] for variable in board["templating"]["list"])


@pytest.mark.parametrize("place", [RULES, TESTS, DASHBOARD, RUNBOOKS, GUIDE], ids=lambda path: path.name)
def test_named_metrics_exist(place: Path) -> None:
    """In prose, the name of a histogram or summary stands for its samples."""
    assert set(NAME.findall(place.read_text())) - NAMES - set(LABELS) - CONTROLLERS == set()


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_named_labels_exist(query: str) -> None:
    for name, inside in SELECTED.findall(query):
        family = next(
            family
            for family in EVERY
            if name in {family.full_name, *(family.full_name + part for part in ("_bucket", "_sum", "_count"))}
        )
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", inside)) - LABELS[family.full_name] == set()


def test_dashboard_shows_every_metric() -> None:
    """Left out are some of the process."""
    shown = {name for query in queries() for name in NAME.findall(query)}
    missing = [
        family.full_name
        for family in FAMILIES
        if not {BY_SAMPLE[s].full_name + s.removeprefix(family.name) for s in family.samples} & shown
    ]
    assert missing == ["process_virtual_memory_bytes", "process_start_time_seconds", "process_threads"]


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own


def test_each_alert_has_a_runbook() -> None:
    """Each runbook is of an existing alert."""
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in alerts())
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    tests = [each for test in yaml.safe_load(TESTS.read_text())["tests"] for each in test["alert_rule_test"]]
    assert {test["alertname"] for test in tests if test["exp_alerts"]} == {rule["alert"] for rule in alerts()}


def test_buckets_of_the_tests_exist() -> None:
    bounds = set(re.findall(r'le="([^"]+)"', TESTS.read_text()))
    assert bounds <= {*map(repr, SECONDS), "+Inf"}


def test_rules_pass_the_checks_of_prometheus(promtool: str) -> None:
    done = prometheus.run(promtool, "check", "rules", str(RULES))
    assert (done.returncode, "SUCCESS" in done.stdout) == (0, True), done.stdout


def test_alerts_fire_as_they_should(promtool: str) -> None:
    done = prometheus.run(promtool, "test", "rules", TESTS.name, cwd=str(TESTS.parent))
    assert (done.returncode, "SUCCESS" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("change", [("> 600", "> 6000"), ("== 0", "== 2"), ("> 0.95", "> 0.99"), ("offset 55m", "offset 1m")])
def test_tests_of_the_alerts_detect_a_wrong_rule(promtool: str, tmp_path: Path, change: tuple[str, str]) -> None:
    changed = RULES.read_text().replace(*change)
    assert changed != RULES.read_text()
    (tmp_path / RULES.name).write_text(changed)
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    assert prometheus.run(promtool, "test", "rules", TESTS.name, cwd=str(tmp_path)).returncode != 0
