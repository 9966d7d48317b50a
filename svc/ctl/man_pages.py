"""Manual pages of svcctl and its commands, in roff, written from what the commands say of themselves."""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Final

import click

import svc

SECTION: Final = 1
_EXAMPLES: Final = re.compile(r"Examples?:")
_CODE: Final = re.compile(r"`([^`]+)`")


def pages(root: click.Group, name: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the page of a group, and of each command below it."""
    yield from _pages(click.Context(root, info_name=name))


def page_of(root: click.Group, name: str, words: Sequence[str]) -> str:
    """Return the page of the command that the words name. Raise UsageError if the command does not exist."""
    context = click.Context(root, info_name=name)
    for word in words:
        found = context.command.get_command(context, word) if isinstance(context.command, click.Group) else None
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {word!r}: `{name} --help` lists them")
        context = click.Context(found, info_name=word, parent=context)
    return _page(context)


def _pages(context: click.Context) -> Iterator[tuple[str, str]]:
    yield f"{_title(context)}.{SECTION}", _page(context)
    for child in _children(context):
        yield from _pages(child)


def _children(context: click.Context) -> list[click.Context]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return [click.Context(child, info_name=name, parent=context) for name, child in found if child and not child.hidden]


def _title(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context) -> str:
    summary, *paragraphs = _paragraphs(context.command)
    lines = [
        f'.TH {_escaped(_title(context).upper())} {SECTION} "" "svc {svc.__version__}" "svc manual"',
        *(".SH NAME", f"{_escaped(_title(context))} \\- {_styled(_first_sentence(summary))}"),
        *(".SH SYNOPSIS", f".B {_escaped(context.command_path)}"),
        _escaped(" ".join(context.command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_description([summary, *paragraphs]),
        *_options(context),
        *_commands(context),
        *_examples(paragraphs),
        *_see_also(context),
    ]
    return "\n".join(lines) + "\n"


def _paragraphs(command: click.Command) -> list[str]:
    text = "\n\n".join(inspect.cleandoc(part) for part in (command.help, command.epilog) if part)
    return [each.strip("\n") for each in text.split("\n\n")]


def _first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    return re.split(r"(?<=[^.])\.(?:\s|$)", flat)[0]


def _is_kept(paragraph: str) -> bool:
    """Return whether the lines of a paragraph stay as they are."""
    return paragraph.startswith("\b")


def _lines_of(paragraph: str) -> list[str]:
    return paragraph.removeprefix("\b").strip("\n").splitlines()


def _is_example(paragraph: str) -> bool:
    return bool(_EXAMPLES.match(_lines_of(paragraph)[0])) if _is_kept(paragraph) else False


def _description(paragraphs: Sequence[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        if not _is_example(paragraph):
            yield ".PP"
            yield from ([".nf", *map(_styled, _lines_of(paragraph)), ".fi"] if _is_kept(paragraph) else [_styled(paragraph)])


def _examples(paragraphs: Sequence[str]) -> Iterator[str]:
    for paragraph in filter(_is_example, paragraphs):
        yield from (".SH EXAMPLES", ".nf", *(_escaped(line.strip()) for line in _lines_of(paragraph)[1:]), ".fi")


def _options(context: click.Context) -> Iterator[str]:
    given = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    records = [record for each in given if (record := each.get_help_record(context))]
    if records:
        yield ".SH OPTIONS"
    for names, text in records:
        yield from (".TP", f".B {_escaped(names)}", _styled(text))
    if context.parent is not None:
        yield from (
            ".PP",
            "The options of",
            ".BR svcctl (1)",
            "for directories, names and the datastore may also follow the command.",
        )


def _commands(context: click.Context) -> Iterator[str]:
    children = _children(context)
    if children:
        yield ".SH COMMANDS"
    for child in children:
        yield from (
            ".TP",
            f".BR {_escaped(_title(child))} ({SECTION})",
            _styled(f"{_first_sentence(child.command.help or '')}."),
        )


def _see_also(context: click.Context) -> Iterator[str]:
    related = [context.parent, *_children(context.parent)] if context.parent else []
    titles = [_title(each) for each in related if each and _title(each) != _title(context)]
    if titles:
        references = [f".BR {_escaped(title)} ({SECTION})," for title in titles]
        yield from (".SH SEE ALSO", *references[:-1], references[-1].removesuffix(","))


def _styled(text: str) -> str:
    """Return text with words between backquotes in bold."""
    return _CODE.sub(r"\\fB\1\\fR", _escaped(text))


def _escaped(text: str) -> str:
    """Return text for roff, with hyphens that can be copied."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)
