"""svcctl pool, reservation, node and clusterinfo: the most frequent tasks of `svcctl get` and `svcctl apply`, in short."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import IO

import click

from svc.admin import changes, kinds, manifest, objects, pools, resources
from svc.admin.changes import Options
from svc.admin.cluster_version import API_TYPE
from svc.admin.kind import Kind
from svc.admin.resources import CLUSTER, UNCHANGED, UPDATED
from svc.ctl.cli_context import CliContext, listed_errors, output_option, own_node, rehearse
from svc.ctl.completion import names_of
from svc.ctl.operator_pools import managed_pools
from svc.ctl.selection import locked_option
from svc.ctl.terminal import echo
from svc.datastore.api import Backend
from svc.ipam.pools import RESERVATION


@click.group()
def pool() -> None:
    """Address pools.

    \b
    Examples:
      svcctl pool apply -f pools.yaml
      svcctl pool get
      svcctl pool delete pods
    """


@click.group()
def reservation() -> None:
    """Reservations: ranges that automatic assignment skips.

    \b
    Examples:
      svcctl reservation apply -f reservations.yaml
      svcctl reservation get
    """


@click.group()
def node() -> None:
    """Nodes, and the labels by which pools select them.

    \b
    Examples:
      svcctl node apply node1 --label rack=a
      svcctl node get
    """


@click.group()
def clusterinfo() -> None:
    """Identity of the datastore, and its lock.

    \b
    Examples:
      svcctl clusterinfo get
      svcctl clusterinfo lock
    """


def _with_examples(summary: str, *examples: str) -> str:
    return "\n      ".join([f"{summary}\n\n    \b\n    Examples:", *examples])


def _add_apply(group: click.Group, kind: Kind) -> None:
    """Give the group `apply -f FILE`."""

    summary = f"Create or update the {group.name}s of a file. If one is invalid, none is changed."

    @group.command(
        help=_with_examples(summary, f"svcctl {group.name} apply -f {group.name}s.yaml", f"svcctl {group.name} apply -f -")
    )
    @click.option(
        "-f",
        "--file",
        type=click.File("rb"),
        required=True,
        help="YAML or JSON, several documents or a List; - is standard input.",
    )
    @locked_option
    @click.pass_obj
    def apply(context: CliContext, file: IO[bytes], while_locked: bool) -> None:
        wanted = manifest.read(file.read(), getattr(file, "name", "<stdin>"), context.names.api_version, kind.name, kind.texts)
        options = Options(datetime.now(timezone.utc), while_locked=while_locked)
        rehearse(context.target, lambda draft: kinds.apply_all(draft, kind, wanted, options))
        with context.changing(create=True) as store:
            outcomes = kinds.apply_all(store, kind, wanted, options)
            for resource, outcome in zip(wanted, outcomes, strict=True):
                echo(f"{resource.name} {outcome}")
            updated = {each.name for each, outcome in zip(wanted, outcomes, strict=True) if outcome == UPDATED}
            warnings = kind.warnings(wanted) if kind.warnings else []
            warnings += managed_pools(store, updated, context.names) if kind is kinds.POOLS else []
        for warning in warnings:
            echo(f"warning: {warning}", err=True)


def _add_get(group: click.Group, kind: Kind) -> None:
    """Give the group `get [NAME]`; objects that svc cannot use are listed with their error."""

    examples = (f"svcctl {group.name} get", f"svcctl {group.name} get NAME -o yaml", f"svcctl {group.name} get -o json")

    @group.command(help=_with_examples(f"Show every {kind.noun}, or one.", *examples))
    @click.argument("name", default="", shell_complete=names_of(kind.name))
    @output_option
    @click.pass_obj
    def get(context: CliContext, name: str) -> None:
        with context.store() as store, listed_errors(kind.plural):
            found = objects.select(objects.read(store, kind), [name] if name else [])
            context.show([each.resource for each in found.found], kind.columns, found.errors)


def _add_delete(group: click.Group, kind: Kind, delete_one: Callable[[Backend, str], None], explanation: str) -> None:
    @group.command(help=_with_examples(explanation, f"svcctl {group.name} delete NAME"))
    @click.argument("name", shell_complete=names_of(kind.name))
    @locked_option
    @click.pass_obj
    def delete(context: CliContext, name: str, while_locked: bool) -> None:
        with context.changing() as store:
            if not while_locked:
                changes.require_unlocked(store.find(CLUSTER))
            delete_one(store, name)
            echo(f"{name} deleted")


_add_apply(pool, kinds.POOLS)
_add_get(pool, kinds.POOLS)
_add_delete(pool, kinds.POOLS, pools.delete, "Delete a pool without addresses in use.")
_add_apply(reservation, kinds.RESERVATIONS)
_add_get(reservation, kinds.RESERVATIONS)
_add_delete(
    reservation,
    kinds.RESERVATIONS,
    lambda store, name: resources.delete(store, RESERVATION, name),
    "Delete a reservation; its addresses are assigned again.",
)
_add_delete(node, kinds.NODES, resources.delete_node, "Delete a node without addresses.")


@node.command("apply")
@click.argument("name", shell_complete=names_of(kinds.NODES.name))
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Replace all labels; repeat it for several.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@locked_option
@click.pass_obj
def apply_node(context: CliContext, name: str, labels: Sequence[str], no_labels: bool, while_locked: bool) -> None:
    """Create a node, or replace its labels. Without an option the labels stay as they are.

    \b
    Examples:
      svcctl node apply node1
      svcctl node apply node1 --label rack=a --label zone=1
      svcctl node apply node1 --no-labels
    """
    if labels and no_labels:
        raise click.UsageError("--label and --no-labels exclude each other: give one of them")
    pairs = _pairs(labels) if labels or no_labels else None
    options = Options(datetime.now(timezone.utc), while_locked=while_locked)
    rehearse(context.target, lambda draft: kinds.apply_node(draft, name, pairs, options))
    with context.changing(create=True) as store:
        echo(f"{name} {kinds.apply_node(store, name, pairs, options)}")


@node.command("get")
@click.argument("name", default="", shell_complete=names_of(kinds.NODES.name))
@output_option
@click.pass_obj
def get_nodes(context: CliContext, name: str) -> None:
    """Show every node, or one.

    \b
    Examples:
      svcctl node get
      svcctl node get node1 -o yaml
    """
    target = context.target
    own = own_node(target)
    with context.store(target) as store:
        context.show(resources.get_nodes(store, name, own), kinds.NODES.columns)


@clusterinfo.command()
@click.option("--type", "types", metavar="WORD", multiple=True, help="Type of the cluster; repeat it for several.")
@click.option("--cluster-version", default="", metavar="VERSION", help="Version of the cluster.  [default: unchanged]")
@click.pass_obj
def init(context: CliContext, types: Sequence[str], cluster_version: str) -> None:
    """Initialise a datastore, or complete its record.

    \b
    Examples:
      svcctl clusterinfo init
      svcctl clusterinfo init --type k8s --cluster-version v1.2.0
    """
    own = [API_TYPE] if context.target.settings["kind"] == "orch" else []
    with context.changing(create=True) as store:
        outcome = resources.initialise(store, context.names, [*types, *own], cluster_version, datetime.now(timezone.utc))
        echo(f"cluster information {outcome}")


@clusterinfo.command()
@output_option
@click.pass_obj
def show(context: CliContext) -> None:
    """Show identity, type, version, and whether it is locked.

    \b
    Examples:
      svcctl clusterinfo show
      svcctl clusterinfo show -o json
    """
    columns = kinds.find(kinds.table(context.names, ""), CLUSTER.kind).columns[1:]
    with context.store() as store:
        context.show([resources.get_cluster_information(store)], columns)


@clusterinfo.command()
@click.pass_obj
def lock(context: CliContext) -> None:
    """Lock the datastore for a migration. Every ADD and DEL fails until `unlock`.

    \b
    Examples:
      svcctl clusterinfo lock
    """
    with context.changing() as store:
        echo("already locked" if resources.set_ready(store, ready=False) == UNCHANGED else "locked")


@clusterinfo.command()
@click.option("--although-moved", is_flag=True, help="Also if a move has locked it: the successor must be gone for good.")
@click.pass_obj
def unlock(context: CliContext, although_moved: bool) -> None:
    """Unlock the datastore.

    \b
    Examples:
      svcctl clusterinfo unlock
    """
    from svc.admin.ipam_check.observation import Place  # not needed by the other commands of this module
    from svc.move import marks

    with context.changing() as store:
        marks.permit_unlock(Place(store, context.names), although_moved=although_moved)
        echo("not locked" if resources.set_ready(store, ready=True) == UNCHANGED else "unlocked")


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
