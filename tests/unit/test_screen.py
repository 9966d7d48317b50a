"""Screens for terminals of any width and encoding."""

import io
import os
import shutil
import sys

import pytest

from svc.ctl import screen
from svc.ctl.cli_context import table
from svc.ctl.screen import Line, duration, printable, rendered, show


@pytest.mark.parametrize("width", [20, 24, 40, 80])
def test_lines_fit_the_width(width: int) -> None:
    """A long word is broken, and no text is lost."""
    text = "the agent does not run: " + "x" * 50
    lines = rendered([Line("problems", text), Line("", "next")], width)
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()) == f"problems{text}next".replace(" ", "")


def test_without_a_width_each_entry_is_one_line() -> None:
    assert rendered([Line("pools", "a " * 200), Line("", "b")], 0) == [f"pools       {'a ' * 200}".rstrip(), "            b"]


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("a\tb\nc  d", "utf-8", "a b c d"),
        ("red \x1b[31m", "utf-8", "red \\x1b[31m"),
        ("caf\xe9", "utf-8", "caf\xe9"),
        ("caf\xe9", "ascii", "caf\\xe9"),
        ("\u4f60", "latin1", "\\u4f60"),
    ],
)
def test_text_is_printable(monkeypatch: pytest.MonkeyPatch, text: str, encoding: str, shown: str) -> None:
    """Messages of servers may contain anything."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert printable(text) == shown


def test_rows_of_a_table_are_lines_without_control_characters() -> None:
    assert table(["NAME", "N"], [["a\r\nb", "1"], ["\x1b[31m", "2"], ["\u202eabc", "3"]]) == "\n".join(
        ["NAME        N", "a\\x0d\\x0ab  1", "\\x1b[31m    2", "\\u202eabc   3"]
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("columns", [20, 40, 200])
@pytest.mark.parametrize("count", [1, 21, 22, 23, 24, 100])
def test_repeated_screen_has_no_more_lines_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, count: int
) -> None:
    """Its first line would scroll away. The cursor takes the last line."""
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    first = "svc on a-node-with-a-name: good"
    show(first, [f"line {number}" for number in range(count)], again=True)
    shown = capsys.readouterr().out.removeprefix("\x1b[H\x1b[J").splitlines()
    taken = sum(-(-len(line) // columns) for line in shown)
    assert taken <= 23
    room = 23 - -(-len(first) // columns)
    if count <= room:
        assert shown[1:] == [f"line {number}" for number in range(count)]
    else:
        assert shown[-1] == f"... {count - room + 1} more lines"
