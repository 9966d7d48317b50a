"""The trace of a call: its lines, fields and phases."""

import re
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from svc.call_trace import LEVELS, CallTrace, new_request_id

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


def test_line_has_time_fields_and_message() -> None:
    """The line is complete and can be written as it is."""
    trace = CallTrace("0123abcd")
    trace.fields |= {"verb": "ADD", "container": "c1"}
    trace.info("attached")
    (line,) = trace.lines
    assert re.fullmatch(STAMP + r" INFO \[0123abcd\] verb=ADD container=c1 attached\n", line)


def test_time_is_utc_with_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=lambda: 1_763_665_401.0421, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr("svc.call_trace.time", clock)
    trace = CallTrace("0123abcd")
    trace.info("now")
    assert trace.lines[0].startswith("2025-11-20 19:03:21.042 INFO")


def test_message_of_several_lines_becomes_several_log_lines() -> None:
    """Each line names its call, so that a traceback cannot be attributed to another call."""
    trace = CallTrace("0123abcd")
    trace.error("first\nsecond\r\nthird\n")
    assert [re.sub(STAMP, "T", line) for line in trace.lines] == [
        f"T ERROR [0123abcd] {word}\n" for word in ("first", "second", "third")
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_lines_below_the_level_are_omitted(level: str) -> None:
    trace = CallTrace("0123abcd", level)
    for name in LEVELS:
        write: Callable[[str], None] = getattr(trace, name.lower())
        write(name)
    assert [line.split()[-1] for line in trace.lines] == [name for name in LEVELS if LEVELS[name] >= LEVELS[level]]


def test_new_level_applies_to_later_lines() -> None:
    """Lines that were omitted before are not added."""
    trace = CallTrace("0123abcd")
    trace.debug("early")
    trace.set_level("DEBUG")
    trace.debug("late")
    trace.set_level("ERROR")
    trace.warning("later")
    assert [line.split()[-1] for line in trace.lines] == ["late"]


def test_unknown_level_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        CallTrace("0123abcd", "LOUD")


def test_durations_of_equal_phases_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is milliseconds, and the order is that of the first use."""
    readings = iter([1.0, 1.25, 2.0, 2.5, 3.0, 3.125])
    monkeypatch.setattr("svc.call_trace.time", SimpleNamespace(perf_counter=lambda: next(readings)))
    trace = CallTrace("0123abcd")
    for name in ("journal", "kernel", "journal"):
        with trace.phase(name):
            pass
    assert trace.phases == {"journal": 375.0, "kernel": 500.0}
    assert trace.phases_text() == "journal=375.00 kernel=500.00"


def test_failed_phase_is_measured() -> None:
    trace = CallTrace("0123abcd")
    with pytest.raises(ValueError, match="broken"), trace.phase("kernel"):
        raise ValueError("broken")
    assert trace.phases["kernel"] >= 0


def test_call_without_phases_has_no_text() -> None:
    assert CallTrace("0123abcd").phases_text() == ""


def test_request_ids_are_short_and_differ() -> None:
    ids = {new_request_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch("[0-9a-f]{8}", each) for each in ids)
