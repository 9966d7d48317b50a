"""svcctl crd."""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from svc.ctl.cli_context import CliContext, echo_yaml
from svc.ctl.path_option import PATH
from svc.ctl.terminal import echo
from svc.datastore.open import open_client
from svc.deploy import crds, rbac
from svc.deploy.server_apply import apply as apply_documents
from svc.names import Names

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def _api_version(context: click.Context, _option: click.Parameter, group: str) -> str:
    names: Names = context.obj.names
    versions = {"backing": names.crd_api_version, "plain": names.api_version, "operator": names.operator_api_version}
    return versions[group]


def _group_option(*groups: str, more: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option with these API groups."""
    return click.option(
        "--group",
        "api_version",
        type=click.Choice(groups),
        default="backing",
        show_default=True,
        callback=_api_version,
        help=f"API group of the resources: the one behind the API, or the API's own{more}.",
    )


_of_definitions = _group_option("backing", "plain", "operator", more=", or that of the Installation")
_of_role = _group_option("backing", "plain")


def _object_name(kind: str, longest: int, form: str, allowed: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return the callback of an option with a name that the API server must accept."""

    def check(_context: click.Context, _option: click.Parameter, name: str) -> str:
        if len(name) > longest or not re.fullmatch(form, name):
            rule = f"give up to {longest} lower-case letters, {allowed}, a letter or digit first and last"
            raise click.BadParameter(f"{name!r} is not the name of a {kind}: {rule}")
        return name

    return check


_check_namespace = _object_name("namespace", 63, _LABEL, "digits and '-'")
_check_account = _object_name("service account", 253, rf"{_LABEL}(\.{_LABEL})*", "digits, '.' and '-'")


@click.group()
def crd() -> None:
    """Resource definitions and rights in a Kubernetes cluster.

    \b
    Examples:
      svcctl crd print
      svcctl crd apply --kubeconfig /root/.kube/config
    """


@crd.command("print")
@_of_definitions
@click.option("--with-rules", is_flag=True, help="Add rules in CEL, for Kubernetes 1.25 or newer.")
@click.pass_obj
def print_definitions(context: CliContext, api_version: str, with_rules: bool) -> None:
    """Print the resource definitions, in YAML.

    \b
    Examples:
      svcctl crd print | kubectl apply --server-side -f -
      svcctl crd print --group plain --with-rules
      svcctl crd print --group operator
    """
    echo_yaml(crds.definitions(context.names, api_version, with_rules=with_rules))


@crd.command("role")
@_of_role
@click.pass_obj
def print_role(context: CliContext, api_version: str) -> None:
    """Print the ClusterRole that the plugin needs, in YAML.

    \b
    Examples:
      svcctl crd role | kubectl apply -f -
    """
    echo_yaml([rbac.role(context.names, api_version)])


@crd.command("binding")
@click.option(
    "--service-account",
    callback=_check_account,
    required=True,
    metavar="NAME",
    help="Account that gets the rights of the ClusterRole.",
)
@click.option(
    "--namespace",
    callback=_check_namespace,
    default="kube-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of the account.",
)
@click.pass_obj
def print_binding(context: CliContext, service_account: str, namespace: str) -> None:
    """Print the ClusterRoleBinding for a service account. It binds the ClusterRole of `svcctl crd role`, and is YAML.

    \b
    Examples:
      svcctl crd binding --service-account svc-cni --namespace kube-system | kubectl apply -f -
    """
    echo_yaml([rbac.binding(context.names, {"kind": "ServiceAccount", "name": service_account, "namespace": namespace})])


@crd.command()
@_of_definitions
@click.option(
    "--kubeconfig",
    type=PATH,
    envvar="KUBECONFIG",
    show_envvar=True,
    required=True,
    help="Kubeconfig of a user who can create CustomResourceDefinitions.",
)
@click.pass_obj
def apply(context: CliContext, api_version: str, kubeconfig: Path) -> None:
    """Create or update the resource definitions.

    \b
    Examples:
      svcctl crd apply --kubeconfig /etc/kubernetes/admin.conf
      svcctl crd apply --kubeconfig /etc/kubernetes/admin.conf --group operator
    """
    with closing(open_client({"kubeconfig": str(kubeconfig)})) as client:
        for applied in apply_documents(client, crds.definitions(context.names, api_version)):
            echo(f"{applied.name} applied")
    echo(f"cluster: Kubernetes API of kubeconfig {kubeconfig}")
