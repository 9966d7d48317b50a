"""Errors: the reference has every code with its number, its meaning and the fix."""

import re
from pathlib import Path

import pytest

from svc.model.errors import CallerError, Code, InternalError, PeerError, SvcError

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
SOURCES = [path.read_text() for path in (Path(__file__).parents[2] / "svc").rglob("*.py")]
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
OTHER_MEANINGS = {
    Code.INCOMPATIBLE_VERSION: "Incompatible CNI version",
    Code.INVALID_NETCONF: "Invalid network configuration",
    Code.INVALID_NETNS: "Invalid network namespace",
    Code.IO_FAILURE: "I/O failure",
    Code.ORCHESTRATOR: "Kubernetes API",
    Code.GATES_CLOSED: "Readiness gates not ready",
}


def rows() -> dict[int, tuple[str, str, str]]:
    found = ROW.findall(REFERENCE.read_text())
    assert len({number for number, *_ in found}) == len(found), "a code has two rows"
    return {int(number): (meaning, when, remedy) for number, meaning, when, remedy in found}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_reference_has_every_code(code: Code) -> None:
    meaning, when, remedy = rows()[int(code)]
    assert meaning == OTHER_MEANINGS.get(code, code.name.replace("_", " ").capitalize())
    assert len(when) > 20
    assert len(remedy) > 20


def test_reference_has_no_other_code() -> None:
    assert rows().keys() == {int(code) for code in Code}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_every_code_is_used(code: Code) -> None:
    """The reference must not describe errors that cannot occur."""
    assert any(f"Code.{code.name}" in text for text in SOURCES)


def test_own_codes_differ_from_those_of_the_specification() -> None:
    """CNI specification, section 2: codes 1 to 99 are reserved."""
    assert all(code < 12 or code == 50 or code >= 100 for code in Code)


@pytest.mark.parametrize(
    ("kind", "code"), [(CallerError, Code.INVALID_NETCONF), (PeerError, Code.DATASTORE), (InternalError, Code.INTERNAL)]
)
def test_error_class_has_a_default_code(kind: type[SvcError], code: Code) -> None:
    """A given code replaces the default code."""
    assert kind("what").code is code
    assert kind("what", code=Code.KERNEL).code is Code.KERNEL
    assert (str(kind("what")), str(kind("what", details="why"))) == ("what", "what: why")
