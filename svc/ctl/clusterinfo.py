"""svcctl clusterinfo."""

from collections.abc import Sequence
from datetime import datetime, timezone

import click

from svc.ctl import cluster
from svc.ctl.context import Context, output_option
from svc.ctl.resources import UNCHANGED
from svc.model.resource import Resource

_ORCH_TYPE = "kdd"  # says that the datastore is the orchestrator's own


@click.group()
def command() -> None:
    """Whose datastore it is, and whether it may be changed."""


@command.command()
@click.option("--type", "types", metavar="WORD", multiple=True, help="What the cluster consists of; repeat it for several.")
@click.option("--cluster-version", default="", metavar="VERSION", help="What the cluster has.  [default: left as it is]")
@click.pass_obj
def init(context: Context, types: Sequence[str], cluster_version: str) -> None:
    """Initialises a new datastore; of an old one, completes what is missing."""
    own = [_ORCH_TYPE] if context.target.settings["kind"] == "orch" else []
    with context.changing(create=True) as store:
        outcome = cluster.initialise(store, context.names, [*types, *own], cluster_version, datetime.now(timezone.utc))
        click.echo(f"cluster information {outcome}")


@command.command()
@output_option
@click.pass_obj
def show(context: Context) -> None:
    """Shows identity, type, version and whether the datastore is ready."""
    version = context.names.version_field
    columns = (
        ("GUID", lambda info: _text(info, "clusterGUID")),
        ("TYPE", lambda info: _text(info, "clusterType")),
        ("VERSION", lambda info: _text(info, version)),
        ("READY", lambda info: {True: "yes", False: "no, locked"}.get(info.spec.get(cluster.READY), "no")),
    )
    with context.store() as store:
        context.show([cluster.get(store)], columns)


@command.command()
@click.pass_obj
def lock(context: Context) -> None:
    """Refuses every ADD and DEL until unlocked: for a migration."""
    with context.changing() as store:
        outcome = cluster.set_ready(store, ready=False)
        click.echo("locked" if outcome != UNCHANGED else "already locked")


@command.command()
@click.pass_obj
def unlock(context: Context) -> None:
    """Allows changes again."""
    with context.changing() as store:
        outcome = cluster.set_ready(store, ready=True)
        click.echo("unlocked" if outcome != UNCHANGED else "not locked")


def _text(info: Resource, field: str) -> str:
    return str(info.spec.get(field) or "")
