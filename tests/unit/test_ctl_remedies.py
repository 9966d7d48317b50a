"""Commands of svcctl that errors and documents tell people to run: each exists, with its options."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from svc.ctl.main import main

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "svc").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUOTED = re.compile(r"`svcctl ([^`]+)`")
LINE = re.compile(r"^    svcctl ([^#|\n]+)", re.MULTILINE)


def told() -> Iterator[tuple[str, str]]:
    """The places that name a command, and the text after its name."""
    for path in (*SOURCES, *DOCUMENTS):
        text = path.read_text()
        patterns = (QUOTED, LINE) if path in DOCUMENTS else (QUOTED,)
        yield from ((str(path.relative_to(ROOT)), found) for pattern in patterns for found in pattern.findall(text))


def fault(words: str) -> str:
    """Return why this is not a command; empty if it is one."""
    command: click.Command = main
    options = options_of(command)
    todo = iter(words.split())
    for word in todo:
        name, has_value, _ = word.partition("=")
        if word.startswith("-"):
            if name not in options:
                return f"{command.name} has no option {name}"
            if not (has_value or options[name].is_flag):
                next(todo, None)
        elif isinstance(command, click.Group):
            child = command.get_command(click.Context(command), word)
            if child is None:
                return f"there is no {word!r}"
            command = child
            options |= options_of(command)
    return f"{words} is a group of commands" if isinstance(command, click.Group) else ""


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}


def test_every_command_that_is_told_exists() -> None:
    found = list(told())
    assert len(found) > 30
    assert [(place, words, reason) for place, words in found if (reason := fault(words))] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pool get", ""),
        ("--names calico pool get NAME", ""),
        ("node apply NAME --label rack=a", ""),
        ("ipam", "ipam is a group"),
        ("ipam map", "no 'map'"),
        ("nothing", "no 'nothing'"),
        ("ipam show --nothing", "no option --nothing"),
        ("node apply NAME --nothing", "no option --nothing"),
    ],
)
def test_commands_that_do_not_exist_are_noticed(words: str, expected: str) -> None:
    found = fault(words)
    assert expected in found
    assert bool(found) is bool(expected)
