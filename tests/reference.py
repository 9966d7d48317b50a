"""Write docs/reference/spec.md and metrics.md: `python tests/reference.py`. With `--print` only print them."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.spec_rows import SPECIFICATION, TESTS, Row, field_of, rows
from svc.agent.metric_families import FAMILIES
from svc.controllers import metric_families as controllers
from svc.metrics import REQUESTS, SECONDS
from svc.metrics.families import Family
from svc.netconf.fields import FIELDS, Field
from svc.routes import metric_families as routes

PAGE = TESTS.parent / "docs" / "reference" / "spec.md"
METRICS_PAGE = PAGE.with_name("metrics.md")
ADDED_FIELDS = "Fields that svc adds"
_PATHS = {field.path for field in FIELDS}

HEAD = """# The specification, statement by statement

The statements of the specification, how svc implements each, and the test that shows it through the installed executable, on
each of the named datastores. Types, defaults and allowed values are those that the code declares (`svc/netconf/fields.py`).
The tests show everything else.

This page is generated: `python tests/reference.py` writes it, and a test fails if it is out of date or a row is missing.
"""
METRICS_HEAD = """# Metrics

The metrics of the agent (`svc-agent run --metrics`), in the text format of Prometheus 0.0.4. See
[how to read them](../metrics.md).

A histogram has the buckets `le` of {buckets} seconds; that of `svc_ipam_batch_requests` has those of {requests} requests. A
summary has a sum and a number.

This page is generated from `metric_families.py` in `svc/agent`, `svc/controllers` and `svc/routes`: `python tests/reference.py`
writes it, and a test fails if it is out of date.
"""
CONTROLLERS_HEAD = """
## Controllers

The metrics of [svc-controllers](../controllers.md#metrics), on the port `prometheusMetricsPort` of its configuration.
"""
ROUTES_HEAD = """
## Routes

The metrics of [svc-routes](../routes.md) (`svc-routes run --metrics`).
"""
FAMILIES_HEAD = """
| Metric | Type | Labels | Unit | Meaning |
|---|---|---|---|---|
"""
CHOICES = """
## Where the specification leaves a choice

| Statement | What svc does |
|---|---|
"""


def page() -> str:
    """Return the whole page."""
    found = rows()
    sections = [_section(section, title, found) for section, (title, _) in SPECIFICATION.items()]
    return "".join([HEAD, *sections, _additions(found), CHOICES, *_choices(found)])


def metrics_page() -> str:
    """Return the page of the metrics."""
    words = {"buckets": SECONDS, "requests": REQUESTS}
    head = METRICS_HEAD.format(**{name: ", ".join(f"{bound:g}" for bound in bounds) for name, bounds in words.items()})
    others = CONTROLLERS_HEAD + _families(controllers.FAMILIES) + ROUTES_HEAD + _families(routes.FAMILIES)
    return head + _families(FAMILIES) + others


def _families(found: Iterable[Family]) -> str:
    return FAMILIES_HEAD + "".join(
        _line(
            f"`{family.full_name}`", family.type, ", ".join(f"`{label}`" for label in family.labels), family.unit, family.help
        )
        for family in found
    )


def _section(section: str, title: str, found: Iterable[Row]) -> str:
    names = SPECIFICATION[section][1]
    own = [row for row in found if row.section == section and row.name in names]
    return f"\n## {section} {title}\n" + _fields(own) + _statements(own)


def _additions(found: Iterable[Row]) -> str:
    known = {(section, name) for section, (_, names) in SPECIFICATION.items() for name in names}
    return f"\n## {ADDED_FIELDS}\n" + _fields([row for row in found if (row.section, row.name) not in known])


def _fields(own: Iterable[Row]) -> str:
    lines = [_field_line(field_of(row.name), row) for row in own if row.name in _PATHS and not row.text]
    head = "\n| Field | Type | Default | Meaning | How | Test |\n|---|---|---|---|---|---|\n"
    return head + "".join(lines) if lines else ""


def _field_line(field: Field, row: Row) -> str:
    kind = field.type + (f": {', '.join(f'`{word}`' for word in field.allowed if word)}" if field.allowed else "")
    return _line(f"`{field.path}`", kind, _default(field), field.meaning, row.how, _test(row))


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if field.default in (None, "", ()):
        return ""
    return f"`{field.default}`" if not isinstance(field.default, bool) else f"`{str(field.default).lower()}`"


def _statements(own: Iterable[Row]) -> str:
    lines = [_line(row.name, row.text, row.how, _test(row)) for row in own if row.text]
    return "\n| | Statement | How | Test |\n|---|---|---|---|\n" + "".join(lines) if lines else ""


def _choices(found: Iterable[Row]) -> Iterator[str]:
    return (_line(_number(row), row.choice) for row in found if row.choice)


def _number(row: Row) -> str:
    """Return the section and the name of the row, or only the name if it contains the number."""
    known = row.section in SPECIFICATION and not row.name.startswith((f"{row.section}.", "R"))
    return f"{row.section} {row.name}" if known else row.name


def _test(row: Row) -> str:
    file, _, function = row.test.partition("::")
    return f"[`{function}`](../../tests/{file}) on {', '.join(row.datastores)}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def main(arguments: list[str]) -> None:
    """Print or write the pages."""
    for path, text in ((PAGE, page()), (METRICS_PAGE, metrics_page())):
        if arguments == ["--print"]:
            sys.stdout.write(text)
        else:
            Path(path).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
