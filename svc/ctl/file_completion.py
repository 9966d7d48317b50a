"""Completion of files and names profiles in shells."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_profiles(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[str | CompletionItem]":
    """Return the shipped names profiles, or let the shell complete files if none continues the word."""
    from svc.netconf.names_profiles import DEFAULT_NAME, SHIPPED

    known = sorted({DEFAULT_NAME, *(file.stem for file in SHIPPED.glob("*.toml"))})
    return [name for name in known if name.startswith(incomplete)] or list(complete_files(context, parameter, incomplete))


def complete_files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Let the shell complete files and folders."""
    from click.shell_completion import CompletionItem  # only in a completion

    return [CompletionItem(incomplete, type="file")]
