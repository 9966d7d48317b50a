"""Arguments and options that choose objects: kinds, names, namespaces and label selectors."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from svc.admin import documents, kinds, label_selector
from svc.admin.kind import NAMESPACE_RULE, Kind, is_namespace
from svc.admin.objects import Listing, read, select, select_in
from svc.ctl.cli_context import CliContext, own_node
from svc.ctl.completion import complete_namespaces
from svc.ctl.file_completion import complete_files
from svc.datastore.api import Backend
from svc.model.endpoint import DEFAULT_NAMESPACE
from svc.model.errors import CallerError
from svc.model.selector import Selector, SelectorError
from svc.netconf.networklist import read_limited
from svc.values import dataclass

FORMATS: Final = ("table", "wide", "json", "yaml", "name")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Scope:
    """The namespaces and labels that a command is about. An empty namespace means the default one."""

    namespace: str = ""
    everywhere: bool = False
    selector: Selector | None = None

    def of(self, kind: Kind) -> str:
        """Return the namespace in which objects of a kind are looked for; empty for all."""
        return "" if self.everywhere or not kind.is_namespaced else self.namespace or DEFAULT_NAMESPACE

    def require_used(self, chosen: Sequence[Kind]) -> None:
        """Raise UsageError if a namespace is given, and no kind has namespaces."""
        if self.namespace and self.everywhere:
            raise click.UsageError("-n and -A exclude each other: give one of them")
        if (self.namespace or self.everywhere) and not any(kind.is_namespaced for kind in chosen):
            raise click.UsageError(f"objects of kind {chosen[0].name} have no namespace: leave -n and -A out")


def known_kinds(context: CliContext) -> tuple[Kind, ...]:
    """Return the kinds, as the chosen datastore has them."""
    target = context.target
    return kinds.table(target.names, target.settings["kind"])


def parse_targets(known: Sequence[Kind], arguments: Sequence[str]) -> list[tuple[Kind, list[str]]]:
    """Return kinds with names: of `KIND[,KIND] [NAME]...` or `KIND/NAME...`. Raise CallerError, UsageError."""
    first, *names = arguments
    if "/" not in first:
        chosen = [kinds.find(known, word) for word in first.split(",")]
        if len(chosen) > 1 and names:
            raise click.UsageError("several kinds and names exclude each other: give KIND/NAME for each object")
        return [(kind, names) for kind in {kind.name: kind for kind in chosen}.values()]
    found: dict[str, tuple[Kind, list[str]]] = {}
    for argument in arguments:
        word, slash, name = argument.partition("/")
        if not slash or not name:
            raise click.UsageError(f"{argument!r} is not of the form KIND/NAME, as the first argument is")
        kind = kinds.find(known, word)
        found.setdefault(kind.name, (kind, []))[1].append(name)
    return list(found.values())


def choose(context: CliContext, store: Backend, targets: Sequence[tuple[Kind, list[str]]], scope: Scope) -> list[Listing]:
    """Return the objects of each kind that have these names and the labels of the scope. Raise CallerError, StoreError."""
    scope.require_used([kind for kind, _ in targets])
    found = []
    for kind, names in targets:
        if kind.is_namespaced and names and not kind.absence:
            listing = select_in(store, kind, names, scope.of(kind))
        else:
            own = own_node(context.target) if kind.implied else ""
            listing = select(read(store, kind, scope.of(kind), own), names)
        if scope.selector:
            kept = [each for each in listing.found if scope.selector.matches(each.resource.labels)]
            listing = Listing(kind, kept, {})
        found.append(listing)
    return found


def read_files(context: CliContext, paths: Sequence[str], namespace: str, *, recursive: bool) -> documents.Given:
    """Return the objects of files and folders, and every error."""
    files = list(documents.sources(paths, read_stdin, recursive=recursive))
    return documents.read(files, known_kinds(context), context.names, namespace)


def read_stdin() -> bytes:
    """Return all of standard input. Raise CallerError if it is closed, or too long."""
    if sys.stdin is None:
        raise CallerError("standard input is closed", details="give a file in place of -")
    return read_limited(sys.stdin.buffer, "standard input")


def _selector(_context: click.Context, _option: click.Parameter, text: str | None) -> Selector | None:
    try:
        return None if text is None else label_selector.parse(text)
    except SelectorError as error:
        raise click.BadParameter(str(error)) from None


def checked_namespace(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Return the value of an option. Raise BadParameter if it cannot name a namespace."""
    if text and not is_namespace(text):
        raise click.BadParameter(f"{text!r} is not the name of a namespace: give {NAMESPACE_RULE}")
    return text


def file_options(*, required: bool) -> Callable[[Command], Command]:
    """Give a command the options for files."""

    def add(command: Command) -> Command:
        command = click.option("-R", "--recursive", is_flag=True, help="Also read the folders in a folder.")(command)
        return click.option(
            "-f",
            "--file",
            "files",
            metavar="FILE",
            multiple=True,
            required=required,
            shell_complete=complete_files,
            help="YAML or JSON file, or folder; repeat it for several. - is standard input.",
        )(command)

    return add


namespace_option = click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    callback=checked_namespace,
    shell_complete=complete_namespaces,
    help="Namespace.  [default: default]",
)
all_namespaces_option = click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Objects of all namespaces.")
selector_option = click.option(
    "-l", "--selector", metavar="SELECTOR", callback=_selector, help='Labels: "rack=a,zone!=b", or as in pools.'
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
locked_option = click.option("--while-locked", is_flag=True, help="Also change a locked datastore, as a part of its migration.")
