"""svcctl crd."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click
import yaml

from svc.ctl.context import Context
from svc.ctl.object_names import object_name
from svc.datastore.open import open_client
from svc.deploy import cluster
from svc.deploy.crds import definitions
from svc.deploy.rbac import binding, role

_GROUPS = click.Choice(["backing", "plain"])
_group_option = click.option(
    "--group",
    type=_GROUPS,
    default="backing",
    show_default=True,
    help="Which API group keeps the resources: the one behind the API, or the API's own.",
)


@click.group()
def command() -> None:
    """Resource definitions and rights in a Kubernetes cluster."""


@command.command("print")
@_group_option
@click.pass_obj
def print_definitions(context: Context, group: str) -> None:
    """Prints the resource definitions, in YAML."""
    _echo(definitions(context.names, _api_version(context, group)))


@command.command("role")
@_group_option
@click.pass_obj
def print_role(context: Context, group: str) -> None:
    """Prints the ClusterRole that the plugin needs, in YAML."""
    _echo([role(context.names, _api_version(context, group))])


@command.command("binding")
@click.option(
    "--service-account",
    callback=object_name("service account"),
    required=True,
    metavar="NAME",
    help="Account that gets the rights of the ClusterRole.",
)
@click.option(
    "--namespace",
    callback=object_name("namespace"),
    default="kube-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of the account.",
)
@click.pass_obj
def print_binding(context: Context, service_account: str, namespace: str) -> None:
    """Print the ClusterRoleBinding of that role to a service account, in YAML."""
    _echo([binding(context.names, {"kind": "ServiceAccount", "name": service_account, "namespace": namespace})])


@command.command()
@_group_option
@click.option("--kubeconfig", envvar="KUBECONFIG", required=True, help="Of a user who can create CustomResourceDefinitions.")
@click.pass_obj
def apply(context: Context, group: str, kubeconfig: str) -> None:
    """Creates or updates the resource definitions."""
    with closing(open_client({"kubeconfig": kubeconfig})) as client:
        for name in cluster.apply(client, definitions(context.names, _api_version(context, group))):
            click.echo(f"{name} applied")
    click.echo(f"cluster: Kubernetes API of kubeconfig {kubeconfig}")


def _api_version(context: Context, group: str) -> str:
    return context.names.crd_api_version if group == "backing" else context.names.api_version


def _echo(documents: Sequence[Any]) -> None:
    click.echo(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=len(documents) > 1), nl=False)
