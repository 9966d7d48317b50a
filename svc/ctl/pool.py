"""svcctl pool."""

from datetime import datetime, timezone
from typing import IO

import click

from svc.ctl import manifest, pools
from svc.ctl.context import Column, Context
from svc.ctl.verbs import add_delete, add_get
from svc.ipam.view import read_pools
from svc.model.pool import TEXT_FIELDS
from svc.model.resource import Resource

_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda pool: pool.name),
    ("CIDR", lambda pool: _text(pool, "cidr")),
    ("BLOCKS", lambda pool: f"/{pool.spec['blockSize']}" if pool.spec.get("blockSize") else ""),
    ("NAT", lambda pool: _yes(pool, "natOutgoing")),
    ("IPIP", lambda pool: _text(pool, "ipipMode")),
    ("VXLAN", lambda pool: _text(pool, "vxlanMode")),
    ("DISABLED", lambda pool: _yes(pool, "disabled")),
    ("NODES", lambda pool: _text(pool, "nodeSelector")),
)


@click.group()
def command() -> None:
    """Address pools."""


@command.command()
@click.option(
    "-f", "--file", type=click.File("rb"), required=True, help="YAML or JSON, several documents or a List; - is standard input."
)
@click.pass_obj
def apply(context: Context, file: IO[bytes]) -> None:
    """Creates or updates the pools of a file: all of them, or none when any is at fault."""
    source = getattr(file, "name", "<stdin>")
    resources = manifest.read(file.read(), source, context.names.api_version, pools.KIND, TEXT_FIELDS)
    with context.changing(create=True) as store:
        outcomes = pools.apply(store, resources, datetime.now(timezone.utc))
        for resource, outcome in zip(resources, outcomes, strict=True):
            click.echo(f"{resource.name} {outcome}")
    for warning in pools.warnings(resources):
        click.echo(f"warning: {warning}", err=True)


def _text(pool: Resource, field: str) -> str:
    return str(pool.spec.get(field, ""))


def _yes(pool: Resource, field: str) -> str:
    return "yes" if pool.spec.get(field) else "no"


add_get(command, pools.KIND, _COLUMNS, lambda store: read_pools(store).unreadable)
add_delete(command, pools.delete, "Deletes a pool that no address is in use of.")
