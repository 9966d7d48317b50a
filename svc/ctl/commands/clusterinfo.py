"""svcctl clusterinfo."""

from collections.abc import Sequence
from datetime import datetime, timezone

import click

from svc.admin import cluster_info
from svc.admin.resources import UNCHANGED
from svc.ctl.cli_context import CliContext, output_option
from svc.model.resource import Resource

_ORCH_TYPE = "kdd"  # of a cluster whose datastore is the Kubernetes API


@click.group()
def clusterinfo() -> None:
    """Identity of the datastore, and its lock."""


@clusterinfo.command()
@click.option("--type", "types", metavar="WORD", multiple=True, help="Type of the cluster; repeat it for several.")
@click.option("--cluster-version", default="", metavar="VERSION", help="Version of the cluster.  [default: unchanged]")
@click.pass_obj
def init(context: CliContext, types: Sequence[str], cluster_version: str) -> None:
    """Initialise a new datastore, or complete the record of an old one."""
    own = [_ORCH_TYPE] if context.target.settings["kind"] == "orch" else []
    with context.changing(create=True) as store:
        outcome = cluster_info.initialise(store, context.names, [*types, *own], cluster_version, datetime.now(timezone.utc))
        click.echo(f"cluster information {outcome}")


@clusterinfo.command()
@output_option
@click.pass_obj
def show(context: CliContext) -> None:
    """Show identity, type, version and whether the datastore is ready."""
    version = context.names.version_field
    columns = (
        ("GUID", lambda info: _text(info, "clusterGUID")),
        ("TYPE", lambda info: _text(info, "clusterType")),
        ("VERSION", lambda info: _text(info, version)),
        ("READY", lambda info: {True: "yes", False: "no, locked"}.get(info.spec.get(cluster_info.READY), "no")),
    )
    with context.store() as store:
        context.show([cluster_info.get(store)], columns)


@clusterinfo.command()
@click.pass_obj
def lock(context: CliContext) -> None:
    """Make every ADD and DEL fail until `unlock`, for a migration."""
    with context.changing() as store:
        outcome = cluster_info.set_ready(store, ready=False)
        click.echo("locked" if outcome != UNCHANGED else "already locked")


@clusterinfo.command()
@click.pass_obj
def unlock(context: CliContext) -> None:
    """Allow changes again."""
    with context.changing() as store:
        outcome = cluster_info.set_ready(store, ready=True)
        click.echo("unlocked" if outcome != UNCHANGED else "not locked")


def _text(info: Resource, field: str) -> str:
    return str(info.spec.get(field) or "")
