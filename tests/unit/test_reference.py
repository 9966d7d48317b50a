"""Conformance table: it is complete, and the pages in docs agree with it and with the table of metrics."""

import ast
from collections import Counter

import pytest

from harness.spec_rows import SPECIFICATION, TESTS, Row, rows
from reference import METRICS_PAGE, PAGE, metrics_page, page
from svc.netconf.fields import FIELDS

ROWS = rows()
REQUIRED = {(section, name) for section, (_, names) in SPECIFICATION.items() for name in names}


def test_every_statement_has_a_row() -> None:
    """It has only one."""
    assert REQUIRED - {(row.section, row.name) for row in ROWS} == set()
    assert [name for name, count in Counter((row.section, row.name) for row in ROWS).items() if count > 1] == []


def test_every_field_has_a_row() -> None:
    """This includes fields that svc has added. No row is about a field that does not exist."""
    fields = {field.path for field in FIELDS}
    described = {row.name for row in ROWS if not row.text}
    assert fields - described == set()
    assert described - fields == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section} {row.name}")
def test_row_is_complete(row: Row) -> None:
    """It says how svc conforms, and names a test that pytest runs."""
    assert row.how
    assert all(text == "" or text.endswith((".", "`")) for text in (row.text, row.how, row.choice))
    file, _, function = row.test.partition("::")
    assert function.startswith("test_")
    tree = ast.parse((TESTS / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_page_agrees_with_the_rows() -> None:
    """`python tests/reference.py` writes the page."""
    assert PAGE.read_text() == page()


def test_page_of_metrics_agrees_with_the_table() -> None:
    """The same program writes it."""
    assert METRICS_PAGE.read_text() == metrics_page()
