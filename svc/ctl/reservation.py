"""svcctl reservation."""

from datetime import datetime, timezone
from typing import IO

import click

from svc.ctl import manifest, reservations
from svc.ctl.context import Column, Context
from svc.ctl.verbs import add_delete, add_get
from svc.ipam.reserved import KIND
from svc.ipam.view import read_reserved
from svc.model.resource import Resource

_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda reservation: reservation.name),
    ("CIDRS", lambda reservation: _ranges(reservation)),
)


@click.group()
def command() -> None:
    """Reservations: ranges that automatic assignment skips."""


@command.command()
@click.option(
    "-f", "--file", type=click.File("rb"), required=True, help="YAML or JSON, several documents or a List; - is standard input."
)
@click.pass_obj
def apply(context: Context, file: IO[bytes]) -> None:
    """Create or update the reservations of a file: all of them, or none if any is invalid."""
    source = getattr(file, "name", "<stdin>")
    resources = manifest.read(file.read(), source, context.names.api_version, KIND, [f"{reservations.FIELD}[]"])
    with context.changing(create=True) as store:
        outcomes = reservations.apply(store, resources, datetime.now(timezone.utc))
        for resource, outcome in zip(resources, outcomes, strict=True):
            click.echo(f"{resource.name} {outcome}")


def _ranges(reservation: Resource) -> str:
    given = reservation.spec.get(reservations.FIELD) or ()
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


add_get(command, KIND, _COLUMNS, lambda store: read_reserved(store).unreadable)
add_delete(command, reservations.delete, "Delete a reservation; its addresses are assigned again.")
