"""svcctl pool, reservation, node and clusterinfo."""

import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import IO

import click

from svc.admin import manifest, pools, resources
from svc.admin.resources import CIDRS, POOL, READY, UNCHANGED, UPDATED
from svc.ctl.cli_context import CliContext, Column, listed_errors, output_option, rehearse
from svc.datastore.api import Backend
from svc.ipam.pools import RESERVATION, read_pools, read_reserved
from svc.model.pool import TEXT_FIELDS
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf.node_files import node_name

_KUBERNETES_TYPE = "kdd"  # of a cluster whose datastore is the Kubernetes API


def _field(heading: str, name: str) -> Column:
    return heading, lambda resource: str(resource.spec.get(name) or "")


def _switch(heading: str, name: str) -> Column:
    return heading, lambda resource: "yes" if resource.spec.get(name) else "no"


_POOL_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda pool: pool.name),
    _field("CIDR", "cidr"),
    ("BLOCKS", lambda pool: f"/{pool.spec['blockSize']}" if pool.spec.get("blockSize") else ""),
    _switch("NAT", "natOutgoing"),
    _field("IPIP", "ipipMode"),
    _field("VXLAN", "vxlanMode"),
    _switch("DISABLED", "disabled"),
    _field("NODES", "nodeSelector"),
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
    """Nodes, and the labels by which pools select them."""


@click.group()
def clusterinfo() -> None:
    """Identity of the datastore, and its lock."""


def _add_apply(
    group: click.Group, kind: str, texts: Sequence[str], apply_all: Callable[[Backend, Sequence[Resource], datetime], list[str]]
) -> None:
    """Give the group `apply -f FILE`; `texts` are as in `manifest.read`."""

    @group.command(help=f"Create or update the {group.name}s of a file. If one is invalid, none is changed.")
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
        now = datetime.now(timezone.utc)
        rehearse(context.target, lambda draft: apply_all(draft, wanted, now))
        with context.changing(create=True) as store:
            outcomes = apply_all(store, wanted, now)
            for resource, outcome in zip(wanted, outcomes, strict=True):
                click.echo(f"{resource.name} {outcome}")
            changed = [resource.name for resource, outcome in zip(wanted, outcomes, strict=True) if outcome == UPDATED]
            managed = _managed(store, changed, context.names) if kind == POOL and changed else []
        for warning in (*pools.warnings(wanted), *managed):
            click.echo(f"warning: {warning}", err=True)


def _managed(store: Backend, changed: Sequence[str], names: Names) -> list[str]:
    """Return a line for each changed pool that belongs to the operator's resource."""
    from svc.admin.operator_resource import is_managed  # few installations have an operator

    found = (pool for pool in resources.get(store, POOL) if pool.name in changed and is_managed(pool, names))
    effect = "belongs to the operator's resource: the next `svcctl install --apply-pools` changes it back"
    return [f"IP pool {pool.name!r} {effect}" for pool in found]


def _add_get(
    group: click.Group, kind: str, columns: Sequence[Column], unreadable: Callable[[Backend], Mapping[str, str]]
) -> None:
    """Give the group `get [NAME]`; resources that are `unreadable` are listed with their error."""

    @group.command(help=f"Show every {resources.NOUNS[kind]}, or one.")
    @click.argument("name", default="")
    @output_option
    @click.pass_obj
    def get(context: CliContext, name: str) -> None:
        with context.store() as store, listed_errors(kind):
            errors = {each: error for each, error in unreadable(store).items() if name in ("", each)}
            context.show(resources.get(store, kind, name), columns, errors)


def _add_delete(group: click.Group, delete_one: Callable[[Backend, str], None], explanation: str) -> None:
    @group.command(help=explanation)
    @click.argument("name")
    @click.pass_obj
    def delete(context: CliContext, name: str) -> None:
        with context.changing() as store:
            delete_one(store, name)
            click.echo(f"{name} deleted")


_add_apply(pool, POOL, TEXT_FIELDS, pools.apply)
_add_get(pool, POOL, _POOL_COLUMNS, lambda store: read_pools(store).unreadable)
_add_delete(pool, pools.delete, "Delete a pool without addresses in use.")
_add_apply(reservation, RESERVATION, [f"{CIDRS}[]"], resources.apply_reservations)
_add_get(reservation, RESERVATION, _RESERVATION_COLUMNS, lambda store: read_reserved(store).unreadable)
_add_delete(
    reservation,
    lambda store, name: resources.delete(store, RESERVATION, name),
    "Delete a reservation; its addresses are assigned again.",
)
_add_delete(node, resources.delete_node, "Delete a node without addresses.")


@node.command("apply")
@click.argument("name")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Replace all labels; repeat it for several.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@click.pass_obj
def apply_node(context: CliContext, name: str, labels: Sequence[str], no_labels: bool) -> None:
    """Create a node, or replace its labels. Without an option the labels stay as they are."""
    if labels and no_labels:
        raise click.UsageError("--label and --no-labels exclude each other: give one of them")
    pairs, now = _pairs(labels) if labels or no_labels else None, datetime.now(timezone.utc)
    rehearse(context.target, lambda draft: resources.apply_node(draft, name, pairs, now))
    with context.changing(create=True) as store:
        click.echo(f"{name} {resources.apply_node(store, name, pairs, now)}")


@node.command("get")
@click.argument("name", default="")
@output_option
@click.pass_obj
def get_nodes(context: CliContext, name: str) -> None:
    """Show every node, or one."""
    target = context.target
    own = node_name(target.netconf, target.names, socket.gethostname(), lenient=True) if target.netconf else ""
    with context.store(target) as store:
        context.show(resources.get_nodes(store, name, own), _NODE_COLUMNS)


@clusterinfo.command()
@click.option("--type", "types", metavar="WORD", multiple=True, help="Type of the cluster; repeat it for several.")
@click.option("--cluster-version", default="", metavar="VERSION", help="Version of the cluster.  [default: unchanged]")
@click.pass_obj
def init(context: CliContext, types: Sequence[str], cluster_version: str) -> None:
    """Initialise a datastore, or complete its record."""
    own = [_KUBERNETES_TYPE] if context.target.settings["kind"] == "orch" else []
    with context.changing(create=True) as store:
        outcome = resources.initialise(store, context.names, [*types, *own], cluster_version, datetime.now(timezone.utc))
        click.echo(f"cluster information {outcome}")


@clusterinfo.command()
@output_option
@click.pass_obj
def show(context: CliContext) -> None:
    """Show identity, type, version, and whether it is locked."""
    columns = (
        _field("GUID", "clusterGUID"),
        _field("TYPE", "clusterType"),
        _field("VERSION", context.names.version_field),
        ("READY", lambda info: {True: "yes", False: "no, locked"}.get(info.spec.get(READY), "no")),
    )
    with context.store() as store:
        context.show([resources.get_cluster_information(store)], columns)


@clusterinfo.command()
@click.pass_obj
def lock(context: CliContext) -> None:
    """Lock the datastore for a migration. Every ADD and DEL fails until `unlock`."""
    with context.changing() as store:
        click.echo("already locked" if resources.set_ready(store, ready=False) == UNCHANGED else "locked")


@clusterinfo.command()
@click.pass_obj
def unlock(context: CliContext) -> None:
    """Unlock the datastore."""
    with context.changing() as store:
        click.echo("not locked" if resources.set_ready(store, ready=True) == UNCHANGED else "unlocked")


def _pairs(labels: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for label in labels:
        key, sign, value = label.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"{label!r} is not of the form KEY=VALUE", param_hint="--label")
        if key in pairs:
            raise click.BadParameter(f"key {key!r} is given more than once: keep one of them", param_hint="--label")
        pairs[key] = value
    return pairs


def _ranges(reservation: Resource) -> str:
    given = reservation.spec.get(CIDRS) or ()
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)
