"""svcctl node."""

from collections.abc import Sequence
from datetime import datetime, timezone

import click

from svc.ctl import nodes
from svc.ctl.context import Column, Context
from svc.ctl.verbs import add_delete, add_get

_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda node: node.name),
    ("LABELS", lambda node: ",".join(f"{key}={value}" for key, value in sorted(node.labels.items()))),
)


@click.group()
def command() -> None:
    """Nodes, which node selectors of pools select by their labels."""


@command.command()
@click.argument("name")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Replaces all labels; repeat it for several.")
@click.pass_obj
def apply(context: Context, name: str, labels: Sequence[str]) -> None:
    """Creates a node, or gives it other labels."""
    pairs = dict(_pair(label) for label in labels)
    with context.changing(create=True) as store:
        outcome = nodes.apply(store, name, pairs, datetime.now(timezone.utc))
        click.echo(f"{name} {outcome}")


def _pair(label: str) -> tuple[str, str]:
    key, sign, value = label.partition("=")
    if not key or not sign:
        raise click.BadParameter(f"{label!r} is not of the form KEY=VALUE", param_hint="--label")
    return key, value


add_get(command, nodes.KIND, _COLUMNS)
add_delete(command, nodes.delete, "Deletes a node that holds no address.")
