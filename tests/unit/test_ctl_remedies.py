"""Commands of svcctl in errors and documents: each command and each of its options exists."""

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


def named_commands() -> Iterator[tuple[str, str]]:
    """Return each file that names a command, with the text after `svcctl`."""
    for path in (*SOURCES, *DOCUMENTS):
        text = path.read_text()
        patterns = (QUOTED, LINE) if path in DOCUMENTS else (QUOTED,)
        yield from ((str(path.relative_to(ROOT)), found) for pattern in patterns for found in pattern.findall(text))


def problem_of(words: str) -> str:
    """Return why this is not a command; empty if it is one."""
    command: click.Command = main
    options = options_of(command)
    remaining = iter(words.split())
    for word in remaining:
        name, has_value, _ = word.partition("=")
        if word.startswith("-"):
            if name not in options:
                return f"{command.name} has no option {name}"
            if not (has_value or options[name].is_flag):
                next(remaining, None)
        elif isinstance(command, click.Group):
            child = command.get_command(click.Context(command), word)
            if child is None:
                return f"there is no {word!r}"
            command = child
            options |= options_of(command)
    return f"{words} is a group of commands" if isinstance(command, click.Group) else ""


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}


def test_every_named_command_exists() -> None:
    found = list(named_commands())
    assert len(found) > 30
    assert [(file, words, reason) for file, words in found if (reason := problem_of(words))] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pool get", ""),
        ("--names calico pool get NAME", ""),
        ("node apply NAME --label rack=a", ""),
        ("ipam", "ipam is a group"),
        ("ipam draw", "no 'draw'"),
        ("nothing", "no 'nothing'"),
        ("ipam show --nothing", "no option --nothing"),
        ("node apply NAME --nothing", "no option --nothing"),
    ],
)
def test_commands_that_do_not_exist_are_detected(words: str, expected: str) -> None:
    found = problem_of(words)
    assert expected in found
    assert bool(found) is bool(expected)
