"""svcctl attachments."""

from typing import Any

import click

from svc.admin.agent_client import NoAgent, OldAgent, ask
from svc.attach.journal_reader import describe, read_rows
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext, output_option, table
from svc.ctl.terminal import echo
from svc.timestamps import date_and_time

CONTAINER_CHARACTERS = 13  # of an ID in the table, as crictl shows it
_HEADINGS = ("NETWORK", "CONTAINER", "IFNAME", "STATE", "POD", "ADDRESSES", "INTERFACE", "INDEX", "SINCE")

Json = dict[str, Any]


@click.command()
@click.option("--container", metavar="ID", default="", help="Show only containers whose ID begins so.")
@output_option
@click.pass_obj
def attachments(context: CliContext, container: str) -> None:
    """Show the attachments of this node: addresses, interfaces and states, as the journal records them.

    Without an agent, the journal is read. SINCE is known of the last 1,000 calls of the agent, and of pending releases.

    \b
    Examples:
      svcctl attachments
      svcctl attachments --container 3f1c -o json
    """
    try:
        found = ask(context.state_dir, context.run_dir / SOCKET_NAME, "attachments", container=container)
    except (NoAgent, OldAgent) as failure:
        found = _read_journal(context, container, failure)
    for row in found["unreadable"]:
        echo(f"warning: a row cannot be read: {row}", err=True)
    rows = found["attachments"]
    context.answer(rows, table(_HEADINGS, [_cells(row) for row in rows]))


def _read_journal(context: CliContext, container: str, failure: NoAgent | OldAgent) -> Json:
    """Return the rows of the journal. Raise the failure of the agent if the journal is missing too."""
    path = context.state_dir / "journal.db"
    if not path.exists():
        raise failure
    rows = read_rows(path)
    echo(f"warning: {failure.msg}: its journal is shown", err=True)
    found = [describe(record) for record in rows.records if record.id.container_id.startswith(container)]
    return {"attachments": [{"since": None} | row for row in found], "unreadable": rows.unreadable}


def _cells(row: Json) -> list[str]:
    return [
        row["network"],
        row["container"][:CONTAINER_CHARACTERS],
        row["ifname"],
        row["state"],
        row["pod"],
        ",".join(row["addresses"]),
        row["host_interface"],
        str(row["host_index"] or ""),
        date_and_time(row["since"]) if row["since"] else "",
    ]
