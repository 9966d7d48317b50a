"""A screen of labelled lines for terminals of any width and encoding, with or without colours."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

import click

from svc.ctl.terminal import visible
from svc.values import dataclass

MIN_COLUMNS: Final = 20
_LABEL_COLUMNS: Final = 12
_COLOURS: Final = {"good": "green", "degraded": "yellow", "down": "red"}
_CLEAR: Final = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class Line:
    """A labelled text. An empty label continues the line before."""

    label: str
    text: str


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def columns() -> int:
    """Return the width of the terminal, or that of $COLUMNS; 0 for an output without a width."""
    if not is_terminal() and not os.environ.get("COLUMNS", "").isdecimal():
        return 0
    return max(MIN_COLUMNS, shutil.get_terminal_size().columns)


def title(text: str, verdict: str) -> str:
    """Return a first line that ends with a verdict, which has a colour on a terminal, unless $NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal()
    return f"{text}: {verdict if plain else click.style(verdict, fg=_COLOURS.get(verdict), bold=True)}"


def rendered(lines: Iterable[Line], width: int) -> list[str]:
    """Return the lines with aligned texts, wrapped to a width (0 for none), in the characters of the output's encoding."""
    found: list[str] = []
    for line in lines:
        label = f"{line.label:<{_LABEL_COLUMNS}}"
        text = printable(line.text)
        if not width:
            found.append(f"{label}{text}".rstrip())
            continue
        found += textwrap.wrap(text, width, initial_indent=label, subsequent_indent=" " * _indent(width)) or [label.rstrip()]
    return found


def _indent(width: int) -> int:
    return _LABEL_COLUMNS if width > 2 * _LABEL_COLUMNS else 2


def printable(text: str) -> str:
    """Return the text on one line, without control characters and with escapes for what the output cannot encode."""
    shown = visible(" ".join(text.split()))
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def show(first: str, lines: Sequence[str], *, again: bool) -> None:
    """Print a screen. With `again`, it replaces the previous one on a terminal, and has no more lines than that."""
    if again and is_terminal():
        width, height = shutil.get_terminal_size()
        room = height - 1 - -(-len(click.unstyle(first)) // width)  # the cursor takes the last line
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]
        click.echo("\n".join((f"{_CLEAR}{first}", *lines)))
    else:
        click.echo("\n".join((first, *lines)))


def duration(seconds: float) -> str:
    """Return a duration in its largest unit: `45 s`, `12 min`, `5 h`, `3 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
