"""Active call of a thread: its request ID in log lines, and explanations with log level DEBUG."""

import logging

import pytest

from svc.call_trace import CallTrace, active, add_request_id, explain


def request_of(name: str) -> str:
    record = logging.LogRecord(name, logging.INFO, "", 0, "text", None, None)
    assert add_request_id(record)
    return str(vars(record)["request"])


def test_log_lines_have_the_request_id_of_their_call() -> None:
    assert request_of("svc") == ""
    with CallTrace("abcd1234").activated():
        assert request_of("svc") == "[abcd1234] "
        with CallTrace("ef").activated():
            assert request_of("svc") == "[ef] "
        assert request_of("svc") == "[abcd1234] "
    assert active() is None


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 1), ("INFO", 0)])
def test_explanations_are_formatted_only_with_debug(level: str, count: int) -> None:
    formatted: list[int] = []

    def text() -> str:
        formatted.append(1)
        return "because"

    trace = CallTrace("x", level)
    explain(text)
    with trace.activated():
        explain(text)
    assert len(formatted) == len(trace.lines) == count
