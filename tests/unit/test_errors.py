"""Errors: every code is in the reference, with its number and with what to do."""

import re
from pathlib import Path

import pytest

from svc.model.errors import CallerError, Code, InternalError, PeerError, SvcError

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
SOURCES = [path.read_text() for path in (Path(__file__).parents[2] / "svc").rglob("*.py")]
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
OTHERWISE_NAMED = {
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
def test_reference_tells_every_code(code: Code) -> None:
    meaning, when, remedy = rows()[int(code)]
    assert meaning == OTHERWISE_NAMED.get(code, code.name.replace("_", " ").capitalize())
    assert len(when) > 20
    assert len(remedy) > 20


def test_reference_tells_no_other_code() -> None:
    assert rows().keys() == {int(code) for code in Code}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_every_code_is_one_that_calls_fail_with(code: Code) -> None:
    """A reference that tells of others would send its readers looking for what never happens."""
    assert any(f"Code.{code.name}" in text for text in SOURCES)


def test_own_codes_keep_out_of_those_of_the_specification() -> None:
    """CNI specification, section 2: 1 to 99 are its own."""
    assert all(code < 12 or code == 50 or code >= 100 for code in Code)


@pytest.mark.parametrize(
    ("kind", "code"), [(CallerError, Code.INVALID_NETCONF), (PeerError, Code.DATASTORE), (InternalError, Code.INTERNAL)]
)
def test_error_has_the_code_of_whose_fault_it_is(kind: type[SvcError], code: Code) -> None:
    """Unless it is given a closer one."""
    assert kind("what").code is code
    assert kind("what", code=Code.KERNEL).code is Code.KERNEL
    assert (str(kind("what")), str(kind("what", details="why"))) == ("what", "what: why")
