"""svcctl installation: the resource that describes how a cluster uses svc."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from svc.admin.deployment_checks import RIGHT_REMEDY
from svc.admin.field_changes import ABSENT, field_changes, show_value
from svc.admin.installation_resource import reconcile, status, wanted
from svc.admin.installation_resource.reconcile import Cluster, Outcome
from svc.admin.operator_resource import named_pools
from svc.admin.resources import CREATED, UNCHANGED, UPDATED
from svc.ctl.cli_context import CliContext, Target, output_option, table
from svc.ctl.installation_file import read_installation
from svc.ctl.path_option import PATH
from svc.ctl.selection import checked_namespace, locked_option, read_stdin
from svc.ctl.terminal import echo
from svc.datastore.open import open_client
from svc.datastore.orch.answers import require_resource
from svc.deploy.server_apply import MANAGER
from svc.deploy.server_apply import apply as apply_documents
from svc.model.errors import CallerError
from svc.model.installation import KIND, NAME
from svc.model.pool import with_defaults
from svc.model.resource import Resource
from svc.names import Names
from svc.netconf.networklist import read_file
from svc.values import replace

Json = dict[str, Any]

DIFFERENT: Final = 3  # exit status of diff if something would change, and of status if the cluster is not ready
_MAX_VALUE: Final = 100  # characters of a value in a line

_file_option = click.option("-f", "--file", "file", metavar="FILE", required=True, help="The resource; - for standard input.")
_kubeconfig_option = click.option(
    "--kubeconfig",
    type=PATH,
    envvar="KUBECONFIG",
    show_envvar=True,
    required=True,
    help="Kubeconfig of the cluster.",
)
_namespace_option = click.option(
    "--namespace",
    default=wanted.NAMESPACE,
    show_default=True,
    metavar="NAME",
    callback=checked_namespace,
    help="Namespace of the workloads of svc.",
)


@click.group()
def installation() -> None:
    """The resource Installation: pools, network list and environments of a cluster.

    \b
    Examples:
      svcctl installation render -f installation.yaml
      svcctl installation diff -f installation.yaml --kubeconfig /etc/kubernetes/admin.conf
      svcctl installation apply -f installation.yaml --kubeconfig /etc/kubernetes/admin.conf
      svcctl installation status --kubeconfig /etc/kubernetes/admin.conf
    """


@installation.command()
@_file_option
@output_option
@click.pass_obj
def render(context: CliContext, file: str) -> None:
    """Show what an empty cluster would get. It uses neither a cluster nor a datastore.

    \b
    Examples:
      svcctl installation render -f installation.yaml
      svcctl installation render -f installation.yaml -o yaml
    """
    names = context.names
    document = _read(file, names)
    listed = wanted.listing(document["spec"], (), names)
    pools = [with_defaults(pool) for pool in named_pools(listed)]
    made = wanted.wanted(document["spec"], listed, pools, (), _kubernetes(None), names)
    environments = {
        f"{each.kind}/{each.name}": {key: dict(entry) for key, entry in each.variables.items()} for each in made.workloads
    }
    documents = [
        document | {"status": {"computed": made.computed}},
        reconcile.config_map_of(made, names),
        *({"apiVersion": names.api_version, **pool.to_json(names.api_version)} for pool in pools),
        {"environments": environments},
    ]
    rows = [["ConfigMap", wanted.CONFIG_MAP, wanted.CONFIG_KEY, _value(made.network)]]
    rows += [[pool.kind, pool.name, "spec", show_value(pool.spec)] for pool in pools]
    for each in made.workloads:
        rows += [[each.kind, each.name, key, show_value(entry)] for key, entry in each.variables.items()]
    context.answer(documents, table(("KIND", "NAME", "FIELD", "VALUE"), rows))


@installation.command()
@_file_option
@_kubeconfig_option
@_namespace_option
@output_option
@click.pass_obj
def diff(context: CliContext, file: str, kubeconfig: Path, namespace: str) -> None:
    """Show what `apply` would change. Change nothing.

    \b
    Exit status: 0 nothing would change, 3 something would, 1 errors.

    \b
    Examples:
      svcctl installation diff -f installation.yaml --kubeconfig /etc/kubernetes/admin.conf
      svcctl installation diff -f installation.yaml -o json
    """
    document = _read(file, context.names)
    with _cluster(context, kubeconfig, namespace) as cluster:
        made = reconcile.plan(cluster, document["spec"])
        found = [_planned(_of_resource(cluster, document)), *reconcile.show(cluster, made)]
    _show(context, found)
    if any(each.is_change for each in found):
        sys.exit(DIFFERENT)


@installation.command()
@_file_option
@_kubeconfig_option
@_namespace_option
@locked_option
@output_option
@click.pass_obj
def apply(context: CliContext, file: str, kubeconfig: Path, namespace: str, while_locked: bool) -> None:
    """Write the resource, and bring about what it asks for. If it has an error, nothing is changed.

    What a failure interrupts is completed by the next call. A pool that is not listed any more is disabled, and deleted when no
    block of it is left.

    \b
    Examples:
      svcctl installation apply -f installation.yaml --kubeconfig /etc/kubernetes/admin.conf
      svcctl installation apply -f installation.yaml --kubeconfig admin.conf --netconf etcd.json   # pools in etcd
    """
    document = _read(file, context.names)
    with _cluster(context, kubeconfig, namespace) as cluster:
        made = reconcile.plan(cluster, document["spec"])
        reconcile.require_writable(cluster, made, while_locked=while_locked)
        written = _write_resource(cluster, document)
        result = reconcile.carry_out(cluster, made, while_locked=while_locked)
        reconcile.write_status(cluster, result.findings, made.wanted.computed)
    _show(context, [written, *result.outcomes])
    for text in result.findings.pending:
        echo(f"note: {text}", err=True)
    if problems := result.findings.problems:
        raise CallerError(f"not everything was written: {'; '.join(problems)}")


@installation.command(name="status")
@click.option("-f", "--file", "file", metavar="FILE", help="Also say whether the cluster has the resource of this file.")
@_kubeconfig_option
@output_option
@click.pass_obj
def show_status(context: CliContext, file: str | None, kubeconfig: Path) -> None:
    """Show the conditions of the cluster's resource.

    \b
    Exit status: 0 ready, 3 not ready, or another resource than that of the file, 1 unable to tell.

    \b
    Examples:
      svcctl installation status --kubeconfig /etc/kubernetes/admin.conf
      svcctl installation status -f installation.yaml -o yaml
    """
    names = context.names
    document = _read(file, names) if file else None
    with closing(open_client(_access(kubeconfig), right_remedy=RIGHT_REMEDY)) as client:
        present = client.get_if_served(reconcile.path_of(names))
    if present is None:
        raise CallerError(
            f"the cluster has no Installation {NAME!r} of {names.operator_api_version}",
            details="`svcctl crd apply --group operator` makes its definition, `svcctl installation apply` the resource",
        )
    require_resource(present, f"GET {reconcile.path_of(names)}")
    is_same = document is None or document["spec"] == present.get("spec")
    conditions = [status.condition_of(present, kind) for kind in (status.READY, status.PROGRESSING, status.DEGRADED)]
    rows = [[each.get(name, "") for name in ("type", "status", "reason", "message")] for each in conditions if each]
    version = (present.get("status") or {}).get("version", "")
    text = f"{table(('CONDITION', 'STATUS', 'REASON', 'MESSAGE'), rows)}\nversion: {version or 'none is in force yet'}"
    if reason := status.staleness(present):
        text += f"\n{reason}"
    context.answer([present], text if is_same else f"{text}\nthe cluster has another resource than {file}")
    if not is_same or not status.is_ready(present):
        sys.exit(DIFFERENT)


def _read(file: str, names: Names) -> Json:
    data, source = (read_stdin(), "<stdin>") if file == "-" else (read_file(Path(file)), file)
    return read_installation(data, source, names)


def _write_resource(cluster: Cluster, document: Json) -> Outcome:
    """Apply the resource, unless the cluster has it: a server of release 1.20 changes the revision of an equal one."""
    found = _of_resource(cluster, document)
    if found.is_change:
        for _ in apply_documents(cluster.client, [document], MANAGER):
            pass
    return found


def _of_resource(cluster: Cluster, document: Json) -> Outcome:
    """Return what `apply` does with the resource itself."""
    present = cluster.client.get_if_served(reconcile.path_of(cluster.names))
    metadata = {name: (present or {}).get("metadata", {}).get(name) or {} for name in ("labels", "annotations")}
    before = None if present is None else Resource(KIND, metadata, present.get("spec") or {})
    merged = {name: {**given, **(document["metadata"].get(name) or {})} for name, given in metadata.items()}
    after = Resource(KIND, merged, document["spec"])
    if before == after:
        return Outcome(KIND, NAME, UNCHANGED)
    return Outcome(KIND, NAME, CREATED if before is None else UPDATED, tuple(field_changes(before, after)))


def _planned(found: Outcome) -> Outcome:
    return replace(found, outcome=f"would be {found.outcome}") if found.is_change else found


def _access(kubeconfig: Path) -> dict[str, str]:
    return {"kubeconfig": str(kubeconfig)}


def _kubernetes(kubeconfig: Path | None) -> dict[str, str]:
    """Return the settings of the Kubernetes API as the datastore."""
    return {"kind": "orch"} | ({} if kubeconfig is None else _access(kubeconfig))


@contextmanager
def _cluster(context: CliContext, kubeconfig: Path, namespace: str) -> Iterator[Cluster]:
    """Open the cluster. Its pools are in the datastore that the user names, else in its Kubernetes API."""
    names = context.names
    target = context.target if context.netconf else Target(names, _kubernetes(kubeconfig), context.state_dir)
    if target.is_embedded:
        raise CallerError(
            f"{target} belongs to one node, and an Installation is about a cluster",
            details="name a network configuration with the datastore of the cluster in --netconf, or leave it out",
        )
    remedy = "" if context.netconf else RIGHT_REMEDY
    with (
        closing(open_client(_access(kubeconfig), right_remedy=RIGHT_REMEDY)) as client,
        closing(context.open_store(target.settings, names, right_remedy=remedy)) as store,
    ):
        yield Cluster(client, store, target.settings, names, namespace=namespace)


def _show(context: CliContext, outcomes: Sequence[Outcome]) -> None:
    documents = [
        {
            "kind": each.kind,
            "name": each.name,
            "outcome": each.outcome,
            "changes": [
                {"field": field}
                | {name: value for name, value in (("before", before), ("after", after)) if value not in (None, ABSENT)}
                for field, before, after in each.changes
            ],
        }
        for each in outcomes
    ]
    lines: list[str] = []
    for each in outcomes:
        lines.append(f"{each.kind.lower()}/{each.name} {each.outcome}")
        lines += [f"  {field}: {_value(before)} -> {_value(after)}" for field, before, after in each.changes]
    context.answer(documents, "\n".join(lines))


def _value(value: Any) -> str:
    text = show_value(ABSENT if value is None else value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
