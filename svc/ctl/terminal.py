"""Text for people. Control characters of stored names and messages are shown escaped: a terminal would obey them."""

import sys

import click

from svc.ctl.output import discard


def visible(text: str) -> str:
    """Return one line with escapes, such as `\\x1b`, for line ends and all other characters that are not printable."""
    return text if text.isprintable() else "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """Return lines with escapes for what is not printable, except the ends of the lines."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def echo(text: str, *, err: bool = False) -> None:
    """Print lines for people, on standard output or standard error."""
    click.echo(visible_lines(text), err=err)


def tell(text: str) -> None:
    """Print lines to standard error. A full disk behind it ends nothing and changes no status; a reader that has ended does."""
    try:
        echo(text, err=True)
    except BrokenPipeError:
        raise
    except OSError:
        discard(sys.stderr)  # Python would try again at exit, and fail


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 1 << 8 else f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"
