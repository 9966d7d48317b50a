"""svcctl apply, create and replace: documents of any kind."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

import click

from svc.admin import changes, kinds
from svc.admin.changes import Change, Options
from svc.admin.documents import Given
from svc.admin.resources import UPDATED
from svc.ctl.changed import show_changes
from svc.ctl.cli_context import CliContext, open_draft, rehearse
from svc.ctl.operator_pools import managed_pools
from svc.ctl.selection import dry_run_option, file_options, locked_option, namespace_option, read_files
from svc.ctl.terminal import echo
from svc.datastore.api import Backend
from svc.model.errors import Code
from svc.values import dataclass

Command = TypeVar("Command", bound=Callable[..., Any])

_output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml", "name"]), help="Output format.  [default: table]"
)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The options that the commands share."""

    files: Sequence[str]
    recursive: bool
    namespace: str
    dry_run: bool
    while_locked: bool
    output: str | None


def _shared_options(command: Command) -> Command:
    """Give a command the options of `_Arguments`."""
    for option in (_output_option, locked_option, dry_run_option, namespace_option, file_options(required=True)):
        command = option(command)
    return command


@click.command()
@_shared_options
@click.pass_obj
def apply(context: CliContext, /, **arguments: Any) -> None:
    """Create objects, or change them to what documents say. If one document has an error, nothing is changed.

    Files may have documents of several kinds, and `kind: List`. What a document does not mention stays: metadata, and fields
    of other programs. A document with metadata.resourceVersion applies only to that version of the object.

    \b
    Examples:
      svcctl apply -f cluster.yaml
      svcctl apply -f pools/ -f nodes.yaml --dry-run
      svcctl get pool pods -o yaml | sed 's/nodeSelector: .*/nodeSelector: has(rack)/' | svcctl apply -f -
      svcctl convert -f calico.yaml --to default | svcctl apply -f -
    """
    _carry_out(context, _Arguments(**arguments))


@click.command()
@_shared_options
@click.pass_obj
def create(context: CliContext, /, **arguments: Any) -> None:
    """Create the objects of documents. If one exists, or has an error, nothing is changed.

    \b
    Examples:
      svcctl create -f pool.yaml
      svcctl create -f - < pool.yaml
      svcctl create -f cluster/ --recursive --dry-run
    """
    _carry_out(context, _Arguments(**arguments), create=True)


@click.command()
@_shared_options
@click.pass_obj
def replace(context: CliContext, /, **arguments: Any) -> None:
    """Replace objects by documents. If one does not exist, or has an error, nothing is changed.

    What a document does not mention is removed: labels, annotations, and fields of other programs too. `svcctl apply` keeps
    those. A document with metadata.resourceVersion replaces only that version of the object.

    \b
    Examples:
      svcctl replace -f endpoint.yaml
      svcctl replace -f endpoint.yaml --dry-run    # which fields it would change or remove
      svcctl get hep node1-eth0 -o yaml | grep -v 'rack: a' | svcctl replace -f -
    """
    _carry_out(context, _Arguments(**arguments), replace=True)


def _carry_out(context: CliContext, arguments: _Arguments, **mode: bool) -> None:
    options = Options(datetime.now(timezone.utc), while_locked=arguments.while_locked, **mode)
    wanted, problems = read_files(context, arguments.files, arguments.namespace, recursive=arguments.recursive)
    given = [changes.replaced(each) for each in wanted] if options.replace else wanted, problems
    output = arguments.output or context.output
    if arguments.dry_run:
        _show_plan(context, given, options, output)
    else:
        _write(context, given, options, output)


def _show_plan(context: CliContext, given: Given, options: Options, output: str) -> None:
    target = context.target
    context.require_store(target, create=True)
    with open_draft(target) if target.is_missing else context.store(target) as store:
        show_changes(_plan(store, given, options), output, dry_run=True)


def _write(context: CliContext, given: Given, options: Options, output: str) -> None:
    rehearse(context.target, lambda draft: _plan(draft, given, options))
    with context.changing(create=True, apart=output != "table") as store:
        _require_valid(store, given, options)
        done = changes.apply(store, given[0], options)
        show_changes(done, output, dry_run=False)
        warnings = _warnings(context, store, done)
    for warning in warnings:
        echo(f"warning: {warning}", err=True)


def _plan(store: Backend, given: Given, options: Options) -> list[Change]:
    _require_valid(store, given, options)
    return changes.preview(store, given[0], options)


def _require_valid(store: Backend, given: Given, options: Options) -> None:
    """Raise CallerError with every error of the documents, if one cannot be read."""
    wanted, problems = given
    if problems:
        changes.raise_problems([*problems, *changes.find_problems(store, wanted, options)], Code.DECODING_FAILURE)


def _warnings(context: CliContext, store: Backend, done: Sequence[Change]) -> list[str]:
    """Return a line for each setting that svc does not use itself, and for each pool that the operator changes back."""
    found = []
    for kind in {each.wanted.kind.name: each.wanted.kind for each in done}.values():
        if kind.warnings:
            found += kind.warnings([each.after for each in done if each.wanted.kind.name == kind.name])
    pools = [each for each in done if each.wanted.kind.name == kinds.POOLS.name and each.outcome == UPDATED]
    return [*found, *managed_pools(store, {each.after.name for each in pools}, context.names)]
