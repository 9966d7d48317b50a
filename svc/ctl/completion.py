"""Completion of kinds and of the names of objects in shells. It shows no errors, because a shell has no place for them."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from svc.admin.kind import Kind
    from svc.ctl.cli_context import CliContext
    from svc.model.resource import Resource

Complete = Callable[[click.Context, click.Parameter, str], "list[str] | list[CompletionItem]"]

MAX_SECONDS: Final = 2  # for the answer of a datastore


def complete_objects(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the kinds and names that continue `KIND[,KIND] [NAME]...` or `KIND/NAME...`."""
    with suppress(Exception):
        cli = _context(context)
        return _words(cli, context.params, incomplete)
    return []


def names_of(word: str) -> Complete:
    """Return the completion with the names of the objects of one kind."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        with suppress(Exception):
            cli = _context(context)
            return [name for name in _names(cli, _find(cli, word), "") if name.startswith(incomplete)]
        return []

    return complete


def complete_namespaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces that have objects of a kind with namespaces."""
    with suppress(Exception):
        cli = _context(context)
        found = {each.namespace for kind in _known(cli) if kind.is_namespaced for each in _resources(cli, kind, "")}
        return sorted(name for name in found if name.startswith(incomplete))
    return []


def complete_commands(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands that continue the words which name a command."""
    command: click.Command | None = context.find_root().command
    for word in context.params.get("words") or ():
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
    found = command.list_commands(context) if isinstance(command, click.Group) else []
    return [name for name in found if name.startswith(incomplete)]


def _context(context: click.Context) -> "CliContext":
    from svc.ctl.cli_context import CliContext

    return CliContext(**context.find_root().params).without_version_check


def _find(cli: "CliContext", word: str) -> "Kind":
    from svc.admin import kinds

    return kinds.find(_known(cli), word)


def _known(cli: "CliContext") -> "tuple[Kind, ...]":
    from svc.admin import kinds

    target = cli.target
    return kinds.table(target.names, target.settings["kind"])


def _words(cli: "CliContext", parameters: dict[str, Any], incomplete: str) -> list[str]:
    given: Sequence[str] = parameters.get("arguments") or ()
    word, slash, part = incomplete.partition("/")
    if slash:
        return [f"{word}/{name}" for name in _names(cli, _find(cli, word), _namespace(parameters)) if name.startswith(part)]
    if not given or "/" in given[0]:
        return _kinds(cli, incomplete, "/" if given else "")
    names = _names(cli, _find(cli, given[0]), _namespace(parameters))
    return [name for name in names if name.startswith(incomplete) and name not in given]


def _kinds(cli: "CliContext", incomplete: str, suffix: str) -> list[str]:
    """Return the plural of each kind; another word of a kind only if its plural does not match."""
    before, comma, last = incomplete.rpartition(",")
    found = []
    for kind in _known(cli):
        word = next((word for word in (kind.plural, *kind.names) if word.startswith(last)), "")
        found += [f"{before}{comma}{word}{suffix}"] if word else []
    return found


def _namespace(parameters: dict[str, Any]) -> str:
    """Return the namespace that the user chose; empty for all."""
    from svc.model.endpoint import DEFAULT_NAMESPACE

    return "" if parameters.get("everywhere") else str(parameters.get("namespace") or DEFAULT_NAMESPACE)


def _names(cli: "CliContext", kind: "Kind", namespace: str) -> list[str]:
    return [each.name for each in _resources(cli, kind, namespace)]


def _resources(cli: "CliContext", kind: "Kind", namespace: str) -> "list[Resource]":
    """Return the objects of a kind, if the datastore answers in time."""
    from svc.admin import objects

    found: list[Resource] = []
    within = namespace if kind.is_namespaced else ""

    def read() -> None:
        with suppress(Exception), cli.store() as store:
            found.extend(each.resource for each in objects.read(store, kind, within).found)

    logging.disable()
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(MAX_SECONDS)
    return found
