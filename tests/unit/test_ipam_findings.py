"""The page about findings lists each ID with its meaning and its fix."""

from pathlib import Path

from svc.admin.ipam_check.findings import DATASTORE, KINDS, candidate

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"


def test_page_lists_the_findings() -> None:
    shown = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 4]
    rows = {name: f"| `{name}` | {kind.meaning} | {kind.fix.replace('{}', 'OBJECT')} |" for name, kind in KINDS.items()}
    assert shown == [rows[name] for name in sorted(KINDS, key=lambda name: KINDS[name].source != DATASTORE)]


def test_fix_names_the_object() -> None:
    fix = candidate("pools-overlap", "a and b", "both have 10.0.0.0/8").finding.fix
    assert fix == "svcctl pool delete the one of a and b without addresses in use"
