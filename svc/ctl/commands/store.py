"""svcctl store."""

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import click

from svc.cni.locks import StateLock
from svc.ctl.cli_context import CliContext
from svc.ctl.target import Target
from svc.datastore import backup as backups
from svc.model.errors import CallerError, Code, PeerError

_PATH = click.Path(path_type=Path)


@click.group()
def store() -> None:
    """Backup and restore of the embedded store."""


@store.command()
@click.argument("file", type=_PATH)
@click.pass_obj
def backup(context: CliContext, file: Path) -> None:
    """Copy the store to a new FILE; the agent may run."""
    target = _embedded(context)
    with context.store(target):  # raises if the store does not exist
        backups.back_up(target.file, file)
    click.echo(f"{file} written\ndatastore: {target}")


@store.command()
@click.argument("file", type=_PATH)
@click.pass_obj
def restore(context: CliContext, file: Path) -> None:
    """Replace the store by the backup FILE, and keep the replaced one beside it. Stop the agent first."""
    target = _embedded(context)
    if not target.state_dir.is_dir():
        raise CallerError(f"state directory {str(target.state_dir)!r} does not exist", details="name another --state-dir")
    with closing(_locked(target.state_dir)):
        kept = backups.restore(file, target.file, target.names, datetime.now(timezone.utc))
    click.echo(f"restored from {file}")
    if kept:
        click.echo(f"replaced store kept as {kept}")
    click.echo(f"datastore: {target}")


def _embedded(context: CliContext) -> Target:
    target = context.target
    if not target.is_embedded:
        raise CallerError(
            f"only an embedded store can be copied, and the datastore is {target}",
            details="use the tools of the server, such as `etcdctl snapshot save`; or give --embedded",
        )
    return target


def _locked(state_dir: Path) -> StateLock:
    """Return the lock of the state. Raise PeerError if an agent or a call has it."""
    try:
        lock = StateLock(state_dir, "svcctl store restore")
        lock.take(0)
    except PeerError as held:
        raise PeerError(f"the state is in use: {held.msg}", details="stop svc-agent, and repeat", code=Code.TRY_AGAIN) from None
    except OSError as error:
        raise PeerError(f"the state cannot be locked: {error}", details="run this as root", code=Code.IO_FAILURE) from error
    return lock
