"""svcctl pending."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from svc.attach.journal import Journal
from svc.attach.record import AttachmentId, Record
from svc.ctl.cli_context import CliContext, output_option, table
from svc.ctl.target import describe
from svc.datastore.open import EMBEDDED_FILE
from svc.model.errors import CallerError, Code, PeerError
from svc.timestamps import rfc3339

_JOURNAL = "journal.db"
NOTES = "dropped-releases.jsonl"  # in the state directory

_COLUMNS = ("network", "container", "ifname", "addresses", "datastore")


def _reason(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if not text.strip():
        raise click.BadParameter(f"{text!r} is empty: say why the release is not needed")
    return text.strip()


@click.group()
def pending() -> None:
    """Releases that a DEL left pending, because the datastore could not be reached."""


@pending.command()
@output_option
@click.pass_obj
def get(context: CliContext) -> None:
    """Show the pending releases of this node."""
    with _journal(context.state_dir) as journal:
        documents = [_document(record, context.state_dir) for record in journal.owed()]
    rows = [[_text(document[field]) for field in _COLUMNS] for document in documents]
    context.answer(documents, table([field.upper() for field in _COLUMNS], rows))


@pending.command()
@click.argument("network")
@click.argument("container")
@click.argument("ifname")
@click.option("--reason", required=True, callback=_reason, help="Why the release is not needed; recorded with its addresses.")
@click.pass_obj
def drop(context: CliContext, network: str, container: str, ifname: str, reason: str) -> None:
    """Drop a pending release if its datastore no longer exists. Addresses that it still holds stay assigned there."""
    with _journal(context.state_dir) as journal:
        record = _find(journal, AttachmentId(network, container, ifname))
        document = _document(record, context.state_dir)
        _note(context.state_dir / NOTES, document | {"reason": reason})
        journal.remove(record)
    click.echo(f"{network} {container} {ifname} dropped, noted in {context.state_dir / NOTES}")
    click.echo(f"datastore: {document['datastore']}")


@contextmanager
def _journal(state_dir: Path) -> Iterator[Journal]:
    path = state_dir / _JOURNAL
    if not path.exists():
        raise CallerError(f"journal {str(path)!r} does not exist", details="name the agent's directory with --state-dir")
    with closing(Journal(path)) as journal:
        yield journal


def _find(journal: Journal, wanted: AttachmentId) -> Record:
    pending = {record.id: record for record in journal.owed()}
    if wanted not in pending:
        name = f"{wanted.network} {wanted.container_id} {wanted.ifname}"
        raise CallerError(f"no release of {name} is pending", details="see `svcctl pending get`")
    return pending[wanted]


def _document(record: Record, state_dir: Path) -> dict[str, Any]:
    return {
        "network": record.id.network,
        "container": record.id.container_id,
        "ifname": record.id.ifname,
        "handle": record.handle,
        "addresses": record.addresses,
        "datastore": describe(record.settings, state_dir / EMBEDDED_FILE),
    }


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def _note(path: Path, document: dict[str, Any]) -> None:
    """Append a line that survives a power cut. Raise PeerError if it cannot be written."""
    line = json.dumps({"time": rfc3339(datetime.now(timezone.utc).timestamp()), **document}) + "\n"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as notes:
            notes.write(line)
            notes.flush()
            os.fsync(notes.fileno())
    except OSError as error:
        raise PeerError(
            f"the reason cannot be noted in {str(path)!r}: {error.strerror}", details="free space there", code=Code.IO_FAILURE
        ) from error
