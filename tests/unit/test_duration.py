"""Durations as Go reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.model.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1e-9, "1ns"),
        (1.5e-6, "1.5µs"),
        (0.25, "250ms"),
        (1, "1s"),
        (90, "1m30s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (5430.5, "1h30m30.5s"),
        (86400, "24h0m0s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("1.5h", 5400), ("1us", 1e-6), (".5s", 0.5), ("1.s", 1), ("1s1m", 61)])
def test_other_spellings_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "-5m", "5 m", "m", "1d", "٣s", "1e3s", "9999999h"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is longer than"):
        parse_duration(text)


@given(st.integers(0, 10**16))
def test_written_durations_are_read_as_they_were(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert round(parse_duration(format_duration(seconds)) * 1e9) == round(seconds * 1e9)
