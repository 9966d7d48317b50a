"""svcctl store and pending."""

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from svc.admin import node_state
from svc.admin.output_file import require_not_stdout
from svc.attach.journal_reader import describe_release, read_rows
from svc.attach.record import DELETING, AttachmentId, Record
from svc.ctl.cli_context import CliContext, Target, describe, output_option, table
from svc.ctl.path_option import PATH
from svc.ctl.screen import printable
from svc.ctl.terminal import echo
from svc.datastore import backup as backups
from svc.datastore.open import EMBEDDED_FILE
from svc.model.errors import CallerError
from svc.timestamps import date_and_time

NOTES = "dropped-releases.jsonl"  # in the state directory
_COLUMNS = ("network", "container", "ifname", "addresses", "datastore", "since", "reason")
_file_argument = click.argument("file", type=PATH)


@click.group()
def store() -> None:
    """Backup and restore of the embedded store.

    \b
    Examples:
      svcctl store backup /root/store.db
      svcctl store restore /root/store.db
    """


@store.command()
@_file_argument
@click.pass_obj
def backup(context: CliContext, file: Path) -> None:
    """Copy the store to a new FILE; the agent may run.

    \b
    Examples:
      svcctl store backup /var/backups/svc.db
    """
    require_not_stdout("backup", file)
    target = _embedded(context)
    with context.store(target):  # raises if the store does not exist
        backups.back_up(target.file, file)
    echo(f"{file} written\ndatastore: {target}")


@store.command()
@_file_argument
@click.pass_obj
def restore(context: CliContext, file: Path) -> None:
    """Replace the store by the backup FILE. Stop the agent first. The replaced store is kept beside it.

    \b
    Examples:
      systemctl stop svc-agent && svcctl store restore /var/backups/svc.db
    """
    target = _embedded(context)
    if not target.state_dir.is_dir():
        problem = "is not a directory" if target.state_dir.exists() else "does not exist"
        raise CallerError(f"state directory {str(target.state_dir)!r} {problem}", details="name another --state-dir")
    with closing(node_state.lock_state(target.state_dir, "svcctl store restore")):
        kept = backups.restore(file, target.file, target.names, datetime.now(timezone.utc))
    echo(f"restored from {file}")
    if kept:
        echo(f"replaced store kept as {kept}")
    echo(f"datastore: {target}")


def _embedded(context: CliContext) -> Target:
    target = context.target
    if not target.is_embedded:
        raise CallerError(
            f"only an embedded store can be copied, and the datastore is {target}",
            details="use the tools of the server, such as `etcdctl snapshot save`; or give --embedded",
        )
    return target


@click.group()
def pending() -> None:
    """Releases of DELs that could not reach their datastore.

    \b
    Examples:
      svcctl pending get
    """


@pending.command()
@output_option
@click.pass_obj
def get(context: CliContext) -> None:
    """Show the pending releases of this node: since when, and why the last attempt failed.

    \b
    Examples:
      svcctl pending get
      svcctl pending get -o json
    """
    rows = read_rows(node_state.journal_path(context.state_dir), unfinished=True)
    documents = [_document(record, context.state_dir) for record in rows.records if record.state == DELETING]
    for row in rows.unreadable:
        echo(f"warning: a row cannot be read: {row}", err=True)
    cells = [[_text(field, document[field]) for field in _COLUMNS] for document in documents]
    context.answer(documents, table([field.upper() for field in _COLUMNS], cells))


def _reason(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if not text.strip():
        raise click.BadParameter(f"{text!r} is empty: say why the release is not needed")
    return text.strip()


@pending.command()
@click.argument("network")
@click.argument("container")
@click.argument("ifname")
@click.option("--reason", required=True, callback=_reason, help="Why the release is not needed; recorded with its addresses.")
@click.pass_obj
def drop(context: CliContext, network: str, container: str, ifname: str, reason: str) -> None:
    """Drop a pending release if its datastore no longer exists. Addresses that it still holds stay assigned there.

    \b
    Examples:
      svcctl pending drop k8s-pod-network 0123abcd eth0 --reason 'cluster east was deleted'
    """
    with node_state.open_journal(context.state_dir) as journal:
        record = node_state.find_release(journal, AttachmentId(network, container, ifname))
        document = _document(record, context.state_dir)
        node_state.append_note(context.state_dir / NOTES, document | {"reason": reason})
        journal.remove(record)
    echo(f"{network} {container} {ifname} dropped, noted in {context.state_dir / NOTES}")
    echo(f"datastore: {document['datastore']}")


def _text(field: str, value: Any) -> str:
    if value is None:  # a row of an earlier build
        return ""
    if field == "since":
        return date_and_time(value)
    return ",".join(value) if isinstance(value, list) else printable(str(value))


def _document(record: Record, state_dir: Path) -> dict[str, Any]:
    return {
        "network": record.id.network,
        "container": record.id.container_id,
        "ifname": record.id.ifname,
        "handle": record.handle,
        "addresses": record.addresses,
        "datastore": describe(record.settings, state_dir / EMBEDDED_FILE),
        **describe_release(record),
    }
