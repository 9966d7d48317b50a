"""The conformance table: it has every statement of the specification and every field, and the page says what it says."""

import ast
from collections import Counter

import pytest

from harness.spec_rows import SPECIFICATION, TESTS, Row, rows
from reference import PAGE, page
from svc.netconf.fields import FIELDS

ROWS = rows()
REQUIRED = {(section, name) for section, (_, names) in SPECIFICATION.items() for name in names}


def test_every_statement_has_a_row() -> None:
    """And one row only."""
    assert REQUIRED - {(row.section, row.name) for row in ROWS} == set()
    assert [name for name, count in Counter((row.section, row.name) for row in ROWS).items() if count > 1] == []


def test_every_field_has_a_row() -> None:
    """Whether the specification has it or we have added it; and no row speaks of a field that is gone."""
    fields = {field.path for field in FIELDS}
    told = {row.name for row in ROWS if not row.text}
    assert fields - told == set()
    assert told - fields == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section} {row.name}")
def test_row_is_complete(row: Row) -> None:
    """It says how, and its test exists and is one that pytest runs."""
    assert row.how
    assert all(text == "" or text.endswith((".", "`")) for text in (row.text, row.how, row.choice))
    file, _, function = row.test.partition("::")
    assert function.startswith("test_")
    tree = ast.parse((TESTS / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_page_is_what_the_rows_say() -> None:
    """`python tests/reference.py` writes it again."""
    assert PAGE.read_text() == page()
