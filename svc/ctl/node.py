"""svcctl node."""

import socket
from collections.abc import Sequence
from datetime import datetime, timezone

import click

from svc.ctl import nodes
from svc.ctl.context import Column, Context, output_option
from svc.ctl.target import Target
from svc.ctl.verbs import add_delete
from svc.netconf.nodefiles import node_name

_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda node: node.name),
    ("LABELS", lambda node: ",".join(f"{key}={value}" for key, value in sorted(node.labels.items()))),
)


@click.group()
def command() -> None:
    """Nodes, which node selectors of pools select by their labels."""


@command.command()
@click.argument("name")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Replace all labels; repeat it for several.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@click.pass_obj
def apply(context: Context, name: str, labels: Sequence[str], no_labels: bool) -> None:
    """Create a node, or replace its labels; without either option they stay as they are."""
    if labels and no_labels:
        raise click.UsageError("--label and --no-labels exclude each other: give one of them")
    pairs = _pairs(labels) if labels or no_labels else None
    with context.changing(create=True) as store:
        outcome = nodes.apply(store, name, pairs, datetime.now(timezone.utc))
        click.echo(f"{name} {outcome}")


@command.command()
@click.argument("name", default="")
@output_option
@click.pass_obj
def get(context: Context, name: str) -> None:
    """Show every node, or one."""
    target = context.target
    with context.store(target) as store:
        context.show(nodes.get(store, name, _own_name(target)), _COLUMNS)


def _own_name(target: Target) -> str:
    """Of this node in an embedded store; empty if no network configuration says."""
    return node_name(target.netconf, target.names, socket.gethostname(), lenient=True) if target.netconf else ""


def _pairs(labels: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for key, value in map(_pair, labels):
        if key in pairs:
            raise click.BadParameter(f"key {key!r} is given more than once: keep one of them", param_hint="--label")
        pairs[key] = value
    return pairs


def _pair(label: str) -> tuple[str, str]:
    key, sign, value = label.partition("=")
    if not key or not sign:
        raise click.BadParameter(f"{label!r} is not of the form KEY=VALUE", param_hint="--label")
    return key, value


add_delete(command, nodes.delete, "Deletes a node that holds no address.")
