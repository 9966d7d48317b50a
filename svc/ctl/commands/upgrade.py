"""svcctl upgrade: a cluster goes from one release to another, step by step, and back."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from svc import atomic_file, deadline
from svc.admin.output_file import require_replaceable
from svc.ctl.cli_context import CliContext, output_option, table
from svc.ctl.interrupts import announced_interrupt
from svc.ctl.path_option import PATH
from svc.ctl.terminal import tell
from svc.ctl.upgrade_text import plan_text, run_text, verified_text
from svc.datastore.open import open_client
from svc.model.duration import parse_duration
from svc.model.errors import CallerError
from svc.netconf.networklist import read_file

if TYPE_CHECKING:  # its packages come with an extra
    from svc.upgrade.engine import Engine
    from svc.upgrade.procedure import Procedure
    from svc.upgrade.writer import Writer

Json = dict[str, Any]
Command = Callable[..., Any]

PROCEDURES: Final = (
    "manifests", "manifests-etcd", "operator", "chart", "sidecars", "host-endpoints", "datastore", "to-operator", "takeover",
)  # fmt: skip
_USAGE: Final = 2
_BLOCKED: Final = 3
_FOLDER: Final = "upgrade"
_SKIPPED: Final = "skipped"  # the state of a step that had nothing to do
_OF_STEP: Final = {"name", "state", "changes", "before", "after"}

_kubeconfig_option = click.option(
    "--kubeconfig",
    type=PATH,
    envvar="KUBECONFIG",
    show_envvar=True,
    required=True,
    help="Kubeconfig of an administrator.",
)
_helm_option = click.option("--helm", default="helm", show_default=True, metavar="PATH", help="The program helm, for `chart`.")
_timeout_option = click.option(
    "--timeout", default="30m", show_default=True, metavar="DURATION", help="How long to wait for the cluster."
)
_OF_MANIFEST = (
    click.option(
        "--procedure",
        type=click.Choice(PROCEDURES),
        help="What is to be done.  [default: by what is found in the cluster]",
    ),
    click.option(
        "--manifest",
        default="",
        metavar="FILE|URL",
        help="Manifest of the release; for `chart` its definitions, for `sidecars` a template.",
    ),
    click.option(
        "--policies", default="", metavar="FILE", help="Policies that replace `allow-all-upgrade`, which is deleted at the end."
    ),
    click.option("--sha256", default="", metavar="DIGEST", help="Digest of the manifest; required for a URL."),
    click.option(
        "--base",
        default="",
        metavar="FILE|URL",
        help="Manifest of the present release as it was published, to keep edits that were made in it before it was applied.",
    ),
    click.option("--base-sha256", default="", metavar="DIGEST", help="Digest of the base; required for a URL."),
    click.option("--chart", default="", metavar="FILE|FOLDER", help="Chart of the release to go to, for `chart`."),
    click.option("--release", default="", metavar="NAME", help="Name of the release of helm, for `chart`."),
    click.option("--values", default="", metavar="FILE", help="Values of the chart.  [default: those of the release]"),
    click.option("--external-install", is_flag=True, help="Wait until the user has run helm, for `chart`."),
    click.option(
        "--to", default="", metavar="vX.Y.Z", help="Version to go to.  [default: that of svcctl, or of the names profile]"
    ),
    click.option(
        "--source", default="", metavar="FILE", help="For `datastore`: network configuration of the one to move from."
    ),
    click.option("--target", default="", metavar="FILE", help="For `datastore`: network configuration of the one to move to."),
)


def _of_manifest(command: Command) -> Command:
    for option in reversed(_OF_MANIFEST):
        command = option(command)
    return command


@click.group()
def upgrade() -> None:
    """Upgrade a cluster: look at the plan, apply it, verify the result, and undo it if need be.

    \b
    Procedure       what it does, and what it needs
      manifests       applies a newer manifest: --manifest
      manifests-etcd  the same if etcd is the datastore: --manifest
      operator        applies a newer manifest of the operator: --manifest
      chart           upgrades a release of helm: --chart, --release
      sidecars        brings sidecars of a mesh to the release of the agents: --manifest
      host-endpoints  replaces host endpoints by automatic ones
      datastore       moves the content between etcd and the Kubernetes API: --source, --target
      to-operator     moves from manifests to the operator
      takeover        takes the place of another product's plugin: --manifest

    \b
    Exit status: 0 done or nothing to do, 2 wrong use, 3 blocked, 4 waits for --ack, 5 timed out (run again),
    6 the result is not as it should be.

    \b
    Examples:
      svcctl upgrade plan --manifest new.yaml --kubeconfig /etc/kubernetes/admin.conf --out plan.json
      svcctl upgrade apply --manifest new.yaml --kubeconfig /etc/kubernetes/admin.conf --plan plan.json
      svcctl upgrade undo --kubeconfig /etc/kubernetes/admin.conf
    """


@upgrade.command()
@_of_manifest
@_kubeconfig_option
@_helm_option
@click.option("--out", type=PATH, metavar="FILE", help="Also write the plan to a file, for `apply --plan`.")
@output_option
@click.pass_obj
def plan(context: CliContext, /, out: Path | None, kubeconfig: Path, helm: str, **given: Any) -> None:
    """Show what `apply` would do. Write nothing to the cluster.

    \b
    Exit status: 0 `apply` can begin, or has nothing to do; 2 wrong use; 3 something forbids it.

    \b
    Examples:
      svcctl upgrade plan --manifest new.yaml --kubeconfig /etc/kubernetes/admin.conf
      svcctl upgrade plan --manifest new.yaml --out plan.json -o yaml
    """
    with _statuses():
        if out is not None:
            require_replaceable("--out", out)
        with _engine(context, kubeconfig, {}, helm) as (engine, writer):
            made = engine.plan(_procedure(writer, **given))
        document = made.to_json()
        if out is not None:
            _write(out, document)
    context.answer([document], plan_text(made))
    if made.blockers:
        sys.exit(_BLOCKED)


@upgrade.command()
@_of_manifest
@_kubeconfig_option
@_helm_option
@click.option("--plan", "plan_file", type=PATH, metavar="FILE", help="Refuse if the cluster is not as in this plan any more.")
@click.option("--ack", "acks", multiple=True, metavar="STEP", help="Consent to what this step asks for. Repeat it for others.")
@_timeout_option
@output_option
@click.pass_obj
def apply(
    context: CliContext,
    /,
    plan_file: Path | None,
    acks: tuple[str, ...],
    timeout: str,
    kubeconfig: Path,
    helm: str,
    **given: Any,
) -> None:
    """Carry out all steps that are not done. What an interruption leaves is completed by the next call.

    Ctrl-C ends the command at once; a write that is sent, and a run of helm, end first.

    \b
    Exit status: 0 done or nothing to do, 2 wrong use, 3 blocked, 4 waits for --ack, 5 timed out (run again),
    6 the result is not as it should be, 130 interrupted.

    \b
    Examples:
      svcctl upgrade apply --manifest new.yaml --kubeconfig /etc/kubernetes/admin.conf
      svcctl upgrade apply --manifest new.yaml --plan plan.json --ack DaemonSet/kube-system/svc-node
    """
    with _statuses():
        options = {"acks": frozenset(acks), "timeout": _seconds(timeout), "plan": _read_plan(plan_file)}
    with _engine(context, kubeconfig, options, helm) as (engine, writer):
        has_acted = engine.apply(_procedure(writer, **given))
    context.answer([{"outcome": "done" if has_acted else "nothing to do"}], "done" if has_acted else "nothing to do")


@upgrade.command()
@_of_manifest
@_kubeconfig_option
@_helm_option
@output_option
@click.pass_obj
def verify(context: CliContext, /, kubeconfig: Path, helm: str, **given: Any) -> None:
    """Check that the cluster is as the plan says, and that all pods have followed. Write nothing.

    Give the same options as to `apply`.

    \b
    Exit status: 0 it is, 2 wrong use, 3 unable to tell, 6 it is not.

    \b
    Examples:
      svcctl upgrade verify --manifest new.yaml --kubeconfig /etc/kubernetes/admin.conf
    """
    with _engine(context, kubeconfig, {}, helm) as (engine, writer):
        made = engine.verify(_procedure(writer, **given))
    context.answer([made.to_json()], verified_text(made))


@upgrade.command()
@_kubeconfig_option
@_helm_option
@_timeout_option
@output_option
@click.pass_obj
def undo(context: CliContext, kubeconfig: Path, helm: str, timeout: str) -> None:
    """Undo the steps of the last run, the last one first. Stop at an object that was changed since, and show the difference.

    It needs no manifest: the run has saved what was there before.

    \b
    Exit status: 0 done or nothing to do, 2 wrong use, 3 blocked, 5 timed out (run again), 130 interrupted.

    \b
    Examples:
      svcctl upgrade undo --kubeconfig /etc/kubernetes/admin.conf
    """
    with _engine(context, kubeconfig, {"timeout": _seconds(timeout)}, helm) as (engine, _):
        has_acted = engine.undo()
    context.answer([{"outcome": "undone" if has_acted else "nothing to undo"}], "undone" if has_acted else "nothing to undo")


@upgrade.command()
@_kubeconfig_option
@output_option
@click.pass_obj
def status(context: CliContext, kubeconfig: Path) -> None:
    """Show the last run, as its record in the cluster says.

    \b
    Examples:
      svcctl upgrade status --kubeconfig /etc/kubernetes/admin.conf
    """
    with _engine(context, kubeconfig, {}) as (engine, _):
        run = engine.status()
    if run is None:
        context.answer([], "no run is recorded")
        return
    rows = [[name, state] for name, state in run.steps.items() if state != _SKIPPED]
    document = run.to_json() | {"inputs": run.inputs, "steps": run.steps}
    context.answer([document], run_text(run, table(("STEP", "STATE"), rows)))


@contextmanager
def _engine(context: CliContext, kubeconfig: Path, options: Json, helm: str = "") -> "Iterator[tuple[Engine, Writer]]":
    """Open the cluster. Exit with the status of an error in the block."""
    settings = {"kubeconfig": str(kubeconfig)}
    with _statuses(), closing(open_client(settings)) as client:
        from svc.upgrade.engine import Engine
        from svc.upgrade.helm import Helm
        from svc.upgrade.run_lease import RunLease
        from svc.upgrade.step_runner import Options, Stop
        from svc.upgrade.writer import Writer

        stop, lease = Stop(), RunLease(client)

        @contextmanager
        def permit() -> Iterator[None]:
            stop.check()
            with stop.after_write(), deadline.limit(lease.seconds()):
                yield

        writer = Writer(client, context.names, permit, settings, Helm(helm, str(kubeconfig)))
        chosen = Options(context.state_dir / _FOLDER, say=tell, **options)
        with writer.resources, announced_interrupt(stop.request):
            yield Engine(writer, lease, chosen, stop), writer


@contextmanager
def _statuses() -> Iterator[None]:
    """Print the errors of a run in the block, and exit with their statuses. Wrong input is wrong use."""
    try:
        yield
    except CallerError as error:
        tell(f"Error: {error.as_text()}")
        sys.exit(_USAGE)
    except Exception as error:
        status = getattr(error, "status", None)
        reasons = getattr(error, "reasons", None)
        if reasons is None or not isinstance(status, int):
            raise
        lines = [f"Error: {reasons[0]}", *(f"  {text}" for text in reasons[1:])]
        details = getattr(error, "details", "")
        tell("\n".join([*lines, *([f"  ({details})"] if details else [])]))
        sys.exit(status)


def _procedure(writer: "Writer", procedure: str | None, **given: Any) -> "Procedure":
    from svc.upgrade.procedures import procedure_of
    from svc.upgrade.request import Request

    return procedure_of(procedure or "", writer, Request(**given))


def _write(file: Path, document: Json) -> None:
    try:
        atomic_file.replace(file, (json.dumps(document, indent=2).encode(), b"\n"), 0o644)
    except OSError as error:
        msg = f"--out {str(file)!r} cannot be written: {error.strerror}"
        raise CallerError(msg, details="name a file in a directory that exists and has space") from None


def _read_plan(file: Path | None) -> Json | None:
    if file is None:
        return None
    try:
        found = json.loads(read_file(file))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not _are_steps(found.get("steps")):
        raise CallerError(f"{file} is not a plan", details="make one: `svcctl upgrade plan --out FILE`")
    return found


def _are_steps(found: Any) -> bool:
    """Return whether a value has what is compared of the steps of a plan."""
    return isinstance(found, list) and all(isinstance(each, dict) and each.keys() >= _OF_STEP for each in found)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"--timeout {text!r} {error}: give one such as 30m or 90s") from None
