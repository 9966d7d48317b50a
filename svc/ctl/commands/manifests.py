"""svcctl manifests."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import svc
from svc.admin.deployment_checks import RIGHT_REMEDY, rehearse
from svc.admin.documents import read_raw, sources
from svc.ctl.cli_context import CliContext, echo_json, names_option, output_option
from svc.ctl.path_option import PATH
from svc.ctl.terminal import echo
from svc.datastore.open import open_client
from svc.deploy.discovery import Discovery
from svc.deploy.manifests import settings as choices
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import Problem, Settings
from svc.deploy.manifests.yaml_text import to_yaml
from svc.deploy.server_apply import POOL
from svc.deploy.server_apply import apply as apply_documents
from svc.model.errors import CallerError
from svc.netconf.names_profiles import canonical

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

_SURGE_VERSION: Final = (1, 22)
_RULES_VERSION: Final = (1, 25)
_BUDGET: Final = "PodDisruptionBudget"

Json = dict[str, Any]
Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--flavour",
        type=click.Choice(choices.FLAVOURS),
        default=choices.NETWORKING,
        show_default=True,
        help="networking: addresses of svc; overlay, policy-only: pod CIDRs; operator: as the Installation says.",
    ),
    click.option(
        "--datastore", type=click.Choice(choices.DATASTORES), default=choices.ORCH, show_default=True, help="Datastore."
    ),
    click.option("--image", default=f"svc:{svc.__version__}", show_default=True, metavar="NAME", help="Image of svc."),
    click.option(
        "--namespace",
        default=choices.SYSTEM_NAMESPACE,
        show_default=True,
        metavar="NAME",
        help="Namespace of pods, accounts and configuration.",
    ),
    click.option(
        "--crds",
        type=click.Choice(choices.CRDS),
        help="Resource definitions; rules need Kubernetes 1.25.  [default: without-rules; none if another product has them]",
    ),
    click.option(
        "--group",
        type=click.Choice(["backing", "plain"]),
        default="backing",
        show_default=True,
        help="API group of the resources: the one behind the API, or the API's own.",
    ),
    click.option(
        "--policy-api",
        type=click.Choice(choices.POLICY_APIS),
        help="API group of the PodDisruptionBudget.  [default: what the API server of --kubeconfig has, else policy/v1]",
    ),
    click.option(
        "--update",
        type=click.Choice(choices.UPDATES),
        help="How a node gets a new pod: surge starts it before the old one ends, which needs Kubernetes 1.22.  "
        "[default: what the API server of --kubeconfig can, else replace]",
    ),
    click.option("--routes", is_flag=True, help="Run svc-routes in another flavour than networking as well."),
    click.option("--pool", "pools", multiple=True, metavar="CIDR", help="Range of a pool to create; one of each IP version."),
    click.option("--etcd-endpoints", default="", metavar="URLS", help="Addresses of etcd, separated by commas."),
    click.option("--etcd-tls", is_flag=True, help="Read the files for etcd from the Secret PLUGIN-etcd-secrets."),
    click.option("--policy-agent", type=PATH, metavar="FILE", help="Container that enforces policy, which svc does not."),
    click.option("--proxy", type=PATH, metavar="FILE", help="Objects of a data-path proxy, which is not part of svc."),
    click.option("--kubeconfig", type=PATH, help="Kubeconfig of an administrator, for --apply and for what the server has."),
    click.option("--apply", "is_applied", is_flag=True, help="Apply the objects, in place of printing them."),
    click.option("--dry-run", is_flag=True, help="With --apply: let the API server check the objects, and change nothing."),
)


def _with_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@_with_options
@output_option
@names_option
@click.pass_obj
def manifests(context: CliContext, /, kubeconfig: Path | None, is_applied: bool, dry_run: bool, **options: Any) -> None:
    """Print all objects that bring svc into a cluster, in the order in which they are applied; YAML unless -o json is given.

    \b
    Examples:
      svcctl manifests | kubectl apply --server-side -f -
      svcctl manifests --pool 10.244.0.0/16 --kubeconfig /etc/kubernetes/admin.conf --apply
      svcctl manifests --datastore etcd --etcd-endpoints https://10.0.0.1:2379 --etcd-tls
    """
    if is_applied and kubeconfig is None:
        raise click.UsageError("--apply needs --kubeconfig: it names the cluster")
    if dry_run and not is_applied:
        raise click.UsageError("--dry-run needs --apply: printing changes nothing")
    if kubeconfig is None:
        _print(context, objects(_settings(context, None, **options)))
        return
    with closing(open_client({"kubeconfig": str(kubeconfig)}, right_remedy=RIGHT_REMEDY)) as client:
        settings = _settings(context, client, **options)
        found = objects(settings)
        if not is_applied:
            _print(context, found)
            return
        rehearsed = rehearse(client, kubeconfig, settings, found)  # so that no refusal stops the apply half-way
        if dry_run:
            for each in rehearsed:
                echo(f"{each} {'valid' if each.stored else 'not checked: what it needs is not there yet'}")
        else:
            for each in apply_documents(client, found):
                echo(f"{each} {'kept: it exists, and is not changed' if each.is_kept else 'applied'}")
            if settings.flavour == choices.NETWORKING and settings.is_orch and not _has_pool(client, settings):
                echo("note: no pool exists, so pods get no address: repeat this with --pool CIDR", err=True)
    echo(f"cluster: Kubernetes API of kubeconfig {kubeconfig}")


def _has_pool(client: "Client", settings: Settings) -> bool:
    served = Discovery(client).find(settings.store_api_version, POOL)
    return served is None or bool(client.list(served.path(settings.store_api_version, "")).items)


def _settings(
    context: CliContext,
    client: "Client | None",
    *,
    group: str,
    crds: str | None,
    policy_api: str | None,
    update: str | None,
    policy_agent: Path | None,
    proxy: Path | None,
    **options: Any,
) -> Settings:
    version, served = _version(client), _served_policy_apis(client)
    problems = [
        *_policy_api_problems(crds, policy_api, served),
        *_version_problems(version, "--crds", crds, choices.WITH_RULES, _RULES_VERSION, choices.WITHOUT_RULES),
        *_version_problems(version, "--update", update, choices.SURGE, _SURGE_VERSION, choices.REPLACE),
    ]
    own = context.with_own_names
    names = own.names
    without = choices.NONE if names.foreign_definitions else choices.WITHOUT_RULES
    settings = Settings(
        names=names,
        profile=canonical(own.profile),
        crds=crds or without,
        api_version=names.api_version if group == "plain" else "",
        policy_api=policy_api or next(iter(served), choices.POLICY_APIS[0]),
        surges=update == choices.SURGE if update else version is not None and version >= _SURGE_VERSION,
        policy_agent=_container(policy_agent) if policy_agent else None,
        proxy=_objects("--proxy", proxy) if proxy else [],
        **options,
    )
    choices.check(settings, problems)
    return settings


def _served_policy_apis(client: "Client | None") -> list[str]:
    """Return the API groups of disruption budgets that the server has, or that exist, the newest first."""
    discovery = Discovery(client) if client else None
    return [each for each in choices.POLICY_APIS if discovery is None or discovery.find(each, _BUDGET)]


def _policy_api_problems(crds: str | None, given: str | None, served: Sequence[str]) -> Iterator[Problem]:
    if (crds, given) == (choices.WITH_RULES, choices.POLICY_V1BETA1):
        msg = f"--crds {crds} needs Kubernetes 1.25, which has no {given}"
        yield msg, f"give --policy-api {choices.POLICY_V1}, or --crds {choices.WITHOUT_RULES}"
    if given and served and given not in served:
        msg = f"--policy-api {given}: the API server does not serve {_BUDGET} of {given}"
        yield msg, f"give --policy-api {served[0]}, or leave the option out"


def _version(client: "Client | None") -> tuple[int, int] | None:
    """Return the version of the server; None without a server, or if the version is unknown."""
    answer = client.get("/version") if client else {}
    found = re.match(r"v(\d+)\.(\d+)", str(answer.get("gitVersion", "")))
    return (int(found[1]), int(found[2])) if found else None


def _version_problems(
    version: tuple[int, int] | None, option: str, value: str | None, newer: str, least: tuple[int, int], older: str
) -> Iterator[Problem]:
    """Yield a value of an option that the server is too old for."""
    if value == newer and version is not None and version < least:
        needed, present = (".".join(map(str, each)) for each in (least, version))
        msg = f"{option} {value} needs Kubernetes {needed}, and the API server has {present}"
        yield msg, f"give {option} {older}, or leave the option out"


def _print(context: CliContext, documents: list[Json]) -> None:
    if context.output == "json":
        echo_json({"apiVersion": "v1", "kind": "List", "items": documents})
    else:
        click.echo(to_yaml(documents), nl=False)


def _objects(option: str, file: Path) -> list[Json]:
    if file.is_dir():
        raise CallerError(f"{option} {file} is a directory", details="give a file")
    found = [document.content for document in read_raw(list(sources([str(file)], bytes)))]
    if not all(isinstance(each, dict) for each in found):
        raise CallerError(f"{option} {file}: a document is not an object", details="give objects of Kubernetes")
    return found


def _container(file: Path) -> Json:
    found = _objects("--policy-agent", file)
    if len(found) > 1 or not {"name", "image"} <= found[0].keys():
        msg = f"--policy-agent {file} is not a container"
        raise CallerError(msg, details="give one object with name and image, as in a pod's spec")
    return found[0]
