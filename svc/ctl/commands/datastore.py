"""svcctl datastore export and import."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Final

import click

from svc.admin.resources import CLUSTER
from svc.ctl.cli_context import CliContext
from svc.ctl.commands.ipam_check import listed_documents, place_of
from svc.ctl.path_option import PATH
from svc.ctl.terminal import echo, visible
from svc.model.errors import CallerError, Code
from svc.model.keys import Key
from svc.model.resource import Resource
from svc.move import file as files
from svc.move import marks, preflight, steps
from svc.move.marks import ARRIVING, Mark
from svc.move.preflight import Blocker

if TYPE_CHECKING:
    from svc.admin.ipam_check.observation import Place

BLOCKED_STATUS: Final = 3
_RUN: Final = 16  # digits of the digest that name the run of an import

_ack_option: Callable[..., Any] = click.option(
    "--ack",
    "acknowledged",
    multiple=True,
    type=click.Choice(preflight.ACKNOWLEDGEABLE),
    help="Go on although there are blockers with this ID. Others cannot be acknowledged.",
)


@click.group()
def datastore() -> None:
    """Move of a datastore to one of another kind, by a file.

    \b
    Examples:
      svcctl datastore export /root/svc.jsonl
      svcctl datastore import /root/svc.jsonl --netconf new.conflist
    """


@datastore.command("export")
@click.argument("file", type=PATH)
@click.option("--backup", is_flag=True, help="Export a datastore that is not locked; without the checks for a move.")
@_ack_option
@click.pass_context
def export_command(click_context: click.Context, file: Path, backup: bool, acknowledged: Sequence[str]) -> None:
    """Write all documents of a locked datastore to FILE (mode 0600), at one revision.

    Nothing is changed. Exit status: 0 if the file is written, 3 if something blocks a move.

    \b
    Examples:
      svcctl clusterinfo lock
      svcctl datastore export /root/svc.jsonl
    """
    context: CliContext = click_context.obj
    target = context.target
    with listed_documents(), context.store(target) as store, place_of(target, store) as source:
        if not backup:
            _require_locked(source)
            marks.permit_export(source)
            _stop_at(click_context, preflight.of_source(source, _wait), acknowledged)
        taken = steps.export_at_one_revision(source)
        digest = steps.write_file(source, taken, file)
    echo(f"{len(taken.documents)} documents at revision {taken.revision} written to {file}")
    echo(f"sha256: {digest}\ndatastore: {target}")


def _require_locked(source: "Place") -> None:
    info = marks.present(source)
    if info is None:
        raise marks.not_initialised(source)
    if not marks.is_locked(info):
        raise CallerError(
            f"{source.backend.place} is not locked: addresses assigned after the export would be lost",
            details="`svcctl clusterinfo lock`, and wait until the calls in flight have ended: 95 s; or give --backup",
            code=Code.DATASTORE_LOCKED,
        )


def _wait(seconds: float, counts: Mapping[str, int]) -> bool:
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    echo(f"waiting {seconds:.0f} s, to see again what a call in flight may explain: {listed}", err=True)
    sleep(seconds)
    return True


@datastore.command("import")
@click.argument("file", type=PATH)
@click.option("--archive", type=PATH, metavar="FILE", help="Where the content of a target that is not empty goes.")
@click.option("--dry-run", is_flag=True, help="Show what blocks the import, and change nothing.")
@click.option("--unlock", is_flag=True, help="Unlock the datastore when it equals FILE.")
@click.option("--undo", is_flag=True, help="Delete what an import of FILE has written, or restore what was there before.")
@_ack_option
@click.pass_context
def import_command(
    click_context: click.Context,
    file: Path,
    archive: Path | None,
    dry_run: bool,
    unlock: bool,
    undo: bool,
    acknowledged: Sequence[str],
) -> None:
    """Write the documents of FILE to an empty datastore, read them back and compare them. It stays locked without --unlock.

    An import that was interrupted is continued by the same command. Exit status: 0 if the datastore equals FILE, 3 if
    something blocks the import.

    \b
    Examples:
      svcctl datastore import /root/svc.jsonl --netconf new.conflist --dry-run
      svcctl datastore import /root/svc.jsonl --netconf new.conflist --unlock
    """
    if undo and (unlock or dry_run):
        raise click.UsageError("--undo excludes --unlock and --dry-run")
    context: CliContext = click_context.obj.without_version_check
    target = context.target
    export = files.read(file, target.names)
    documents = export.snapshot.decoded(target.names)
    archive = archive or file.with_name(f"{file.name}.archive")
    with listed_documents(), context.store(target) as store, place_of(target, store) as place:
        run = export.digest[:_RUN]
        if undo:
            _undo(place, run, archive)
            echo(f"the import of {file} is undone\ndatastore: {target}")
            return
        if marks.has_arrived(place, run):
            echo(f"the import of {file} has ended\nstate: {_state(place)}\ndatastore: {target}")
            return
        _stop_at(click_context, _blockers(place, documents, export, run), acknowledged)
        if dry_run:
            echo(f"nothing blocks the import\ndatastore: {target}")
            return
        _import(place, documents, Mark(run, ARRIVING, f"file {file}"), archive)
        if unlock:
            marks.open_target(place, run, f"file {file}")
    state = "ready" if unlock else "locked: repeat the command with --unlock when all nodes use it"
    echo(f"{len(documents)} documents of {file} are there and equal\nstate: {state}\ndatastore: {target}")


def _state(target: "Place") -> str:
    info = marks.present(target)
    return "locked" if info is None or marks.is_locked(info) else "ready"


def _undo(target: "Place", run: str, archive: Path) -> None:
    mark = marks.mark_of(target.names, marks.present(target))
    if mark is None or mark.run != run or mark.state != ARRIVING:
        raise CallerError(
            f"no import of this file to {target.backend.place} is under way",
            details="once the datastore is unlocked, move it back: export it, and import that file into the other one",
        )
    steps.empty(target, run, archive)


def _blockers(target: "Place", documents: Mapping[Key, Any], export: files.Export, run: str) -> list[Blocker]:
    unknown = export.snapshot.unknown(target.names)
    return [
        *preflight.of_target(documents.get(CLUSTER), target, run),
        *preflight.of_documents(documents, target),
        *preflight.of_unknown(unknown),
    ]


def _import(target: "Place", documents: Mapping[Key, Any], mark: Mark, archive: Path) -> None:
    info = documents.get(CLUSTER)
    if not isinstance(info, Resource):
        raise CallerError("the export has no ClusterInformation", details="export a datastore that is in use")
    steps.begin(target, info, mark, archive)
    steps.import_(documents, target)
    report = steps.move_endpoints(documents, target)
    for name, reason in sorted(report.left.items()):
        echo(visible(f"warning: endpoint of {name} left out: {reason}"), err=True)
    steps.require_equal(documents, target)
    steps.enable_pools(documents, target)


def _stop_at(click_context: click.Context, found: Sequence[Blocker], acknowledged: Sequence[str]) -> None:
    """Print the blockers that are not acknowledged, and end with status 3 if there are some."""
    left = preflight.without_acknowledged(found, acknowledged)
    for blocker in left:
        echo(visible(f"blocked: {blocker} [{blocker.id}]"), err=True)
    if left:
        click_context.exit(BLOCKED_STATUS)
