"""svcctl pool, reservation and node."""

import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import IO

import click

from svc.admin import manifest, nodes, pools, reservations, resources
from svc.ctl.cli_context import CliContext, Column, output_option
from svc.ctl.target import Target
from svc.datastore.api import Backend
from svc.ipam.pools import RESERVATION, read_pools, read_reserved
from svc.model.pool import TEXT_FIELDS
from svc.model.resource import Resource
from svc.netconf.node_files import node_name

Apply = Callable[[Backend, Sequence[Resource], datetime], list[str]]
Unreadable = Callable[[Backend], Mapping[str, str]]
"""The faults of resources that cannot be used, by name."""

_POOL_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda pool: pool.name),
    ("CIDR", lambda pool: _text(pool, "cidr")),
    ("BLOCKS", lambda pool: f"/{pool.spec['blockSize']}" if pool.spec.get("blockSize") else ""),
    ("NAT", lambda pool: _yes(pool, "natOutgoing")),
    ("IPIP", lambda pool: _text(pool, "ipipMode")),
    ("VXLAN", lambda pool: _text(pool, "vxlanMode")),
    ("DISABLED", lambda pool: _yes(pool, "disabled")),
    ("NODES", lambda pool: _text(pool, "nodeSelector")),
)
_RESERVATION_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda reservation: reservation.name),
    ("CIDRS", lambda reservation: _ranges(reservation)),
)
_NODE_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda node: node.name),
    ("LABELS", lambda node: ",".join(f"{key}={value}" for key, value in sorted(node.labels.items()))),
)


@click.group()
def pool() -> None:
    """Address pools."""


@click.group()
def reservation() -> None:
    """Reservations: ranges that automatic assignment skips."""


@click.group()
def node() -> None:
    """Nodes, which node selectors of pools select by their labels."""


@node.command("apply")
@click.argument("name")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Replace all labels; repeat it for several.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@click.pass_obj
def apply_node(context: CliContext, name: str, labels: Sequence[str], no_labels: bool) -> None:
    """Create a node, or replace its labels; without either option they stay as they are."""
    if labels and no_labels:
        raise click.UsageError("--label and --no-labels exclude each other: give one of them")
    pairs = _pairs(labels) if labels or no_labels else None
    with context.changing(create=True) as store:
        outcome = nodes.apply(store, name, pairs, datetime.now(timezone.utc))
        click.echo(f"{name} {outcome}")


@node.command("get")
@click.argument("name", default="")
@output_option
@click.pass_obj
def get_nodes(context: CliContext, name: str) -> None:
    """Show every node, or one."""
    target = context.target
    with context.store(target) as store:
        context.show(nodes.get(store, name, _own_name(target)), _NODE_COLUMNS)


def _own_name(target: Target) -> str:
    """Return the name of this node in an embedded store; empty if no network configuration has it."""
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


def _text(pool: Resource, field: str) -> str:
    return str(pool.spec.get(field, ""))


def _yes(pool: Resource, field: str) -> str:
    return "yes" if pool.spec.get(field) else "no"


def _ranges(reservation: Resource) -> str:
    given = reservation.spec.get(reservations.FIELD) or ()
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


def _warn_of_stored(applied: Sequence[Resource]) -> None:
    for warning in pools.warnings(applied):
        click.echo(f"warning: {warning}", err=True)


def _add_apply(
    group: click.Group,
    kind: str,
    texts: Sequence[str],
    apply_all: Apply,
    explanation: str,
    warn: Callable[[Sequence[Resource]], None] = lambda _: None,
) -> None:
    """Give the group `apply -f FILE`; `texts` are as in `manifest.read`."""

    @group.command(help=explanation)
    @click.option(
        "-f",
        "--file",
        type=click.File("rb"),
        required=True,
        help="YAML or JSON, several documents or a List; - is standard input.",
    )
    @click.pass_obj
    def apply(context: CliContext, file: IO[bytes]) -> None:
        wanted = manifest.read(file.read(), getattr(file, "name", "<stdin>"), context.names.api_version, kind, texts)
        with context.changing(create=True) as store:
            outcomes = apply_all(store, wanted, datetime.now(timezone.utc))
            for resource, outcome in zip(wanted, outcomes, strict=True):
                click.echo(f"{resource.name} {outcome}")
        warn(wanted)


def _add_get(group: click.Group, kind: str, columns: Sequence[Column], unreadable: Unreadable) -> None:
    """Give the group `get [NAME]`; resources that are `unreadable` are listed with their fault."""

    @group.command(help=f"Show every {resources.NOUNS[kind]}, or one.")
    @click.argument("name", default="")
    @output_option
    @click.pass_obj
    def get(context: CliContext, name: str) -> None:
        with context.store() as store:
            faults = {each: fault for each, fault in unreadable(store).items() if name in ("", each)}
            context.show(resources.get(store, kind, name), columns, faults)


def _add_delete(group: click.Group, delete_one: Callable[[Backend, str], None], explanation: str) -> None:
    """Give the group `delete NAME`."""

    @group.command(help=explanation)
    @click.argument("name")
    @click.pass_obj
    def delete(context: CliContext, name: str) -> None:
        with context.changing() as store:
            delete_one(store, name)
            click.echo(f"{name} deleted")


_add_apply(
    pool,
    pools.KIND,
    TEXT_FIELDS,
    pools.apply,
    "Create or update the pools of a file: all of them, or none if any is invalid.",
    _warn_of_stored,
)
_add_get(pool, pools.KIND, _POOL_COLUMNS, lambda store: read_pools(store).unreadable)
_add_delete(pool, pools.delete, "Delete a pool without addresses in use.")
_add_apply(
    reservation,
    RESERVATION,
    [f"{reservations.FIELD}[]"],
    reservations.apply,
    "Create or update the reservations of a file: all of them, or none if any is invalid.",
)
_add_get(reservation, RESERVATION, _RESERVATION_COLUMNS, lambda store: read_reserved(store).unreadable)
_add_delete(reservation, reservations.delete, "Delete a reservation; its addresses are assigned again.")
_add_delete(node, nodes.delete, "Delete a node without addresses.")
