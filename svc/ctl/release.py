"""svcctl release."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from svc.attach.journal import Journal
from svc.attach.record import AttachmentId, Record
from svc.ctl.context import Context, table
from svc.model.errors import CallerError

_HEADINGS = ("NETWORK", "CONTAINER", "INTERFACE", "ADDRESSES", "DATASTORE")


@click.group()
def command() -> None:
    """Pending releases of this node: deleted attachments whose datastore does not answer."""


@command.command("list")
@click.pass_obj
def list_releases(context: Context) -> None:
    """List the pending releases; the agent may run."""
    with _journal(context) as journal:
        records = journal.owed()
    documents = [
        {
            "network": record.id.network,
            "container": record.id.container_id,
            "interface": record.id.ifname,
            "addresses": record.addresses,
            "datastore": _datastore(record),
        }
        for record in records
    ]
    rows = [[*map(str, list(each.values())[:3]), ",".join(each["addresses"]), str(each["datastore"])] for each in documents]
    context.answer(documents, table(_HEADINGS, rows))


@command.command()
@click.argument("network")
@click.argument("container")
@click.argument("ifname")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept in the journal with the release.")
@click.pass_obj
def drop(context: Context, network: str, container: str, ifname: str, reason: str) -> None:
    """Drop a pending release, whose datastore will never answer. What it holds there stays held; the agent may run."""
    with _journal(context) as journal:
        if not journal.drop(AttachmentId(network, container, ifname), reason):
            raise CallerError(
                f"no release of container {container!r}, interface {ifname!r}, in network {network!r} is pending",
                details="see `svcctl release list`",
            )
    click.echo(f"release of {network} {container} {ifname} dropped")


@contextmanager
def _journal(context: Context) -> Iterator[Journal]:
    path = context.state_dir / "journal.db"
    if not path.is_file():
        raise CallerError(f"journal {str(path)!r} does not exist", details="name the node's --state-dir")
    with closing(Journal(path)) as journal:
        yield journal


def _datastore(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in record.settings.items())
