"""svcctl version."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import click

from svc.admin.agent_client import ask_version
from svc.admin.versions import SECONDS, Versions, client_version, cluster_version
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext, echo_json, echo_yaml, output_option
from svc.ctl.datastore_summary import load_packages
from svc.ctl.interrupts import INTERRUPTED, end
from svc.ctl.screen import Line
from svc.ctl.terminal import echo, visible
from svc.model.duration import parse_duration

_LABEL_COLUMNS: Final = 17
_UNKNOWN: Final = "unknown"

Json = dict[str, Any]


def _interval(_context: click.Context, _option: click.Parameter, text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        seconds = parse_duration(text)
    except ValueError as problem:
        raise click.BadParameter(f"{text!r} {problem}: give one such as 10s or 1m30s") from None
    if seconds == 0:
        raise click.BadParameter(f"{text!r} is zero: give a duration such as 10s")
    return seconds


@click.command()
@click.option("--client", is_flag=True, help="Show only version and commit of svcctl; ask neither datastore nor agent.")
@click.option("--poll", metavar="DURATION", callback=_interval, help="Ask at this interval until Ctrl-C; print changes.")
@output_option
@click.pass_obj
def version(context: CliContext, client: bool, poll: float) -> None:
    """Show the versions of svcctl, of the cluster and of this node's agent.

    \b
    The commit is that of which svcctl was built. A datastore or an agent that does not answer is named in
    its line, and exit status 1 says so. Clusters of another version than svcctl are shown, too.

    \b
    Examples:
      svcctl version
      svcctl version --client
      svcctl version --poll 10s
      svcctl version -o json | jq -r .cluster.version
    """
    if client and poll:
        raise click.UsageError("--client and --poll exclude each other: the version of svcctl does not change")
    if client:
        _print(context, {"client": client_version()}, again=False)
        return
    versions = Versions(lambda: _cluster(context), lambda: _agent(context), lambda: load_packages(context))
    try:
        _show(context, versions, poll)
    except KeyboardInterrupt:
        end(INTERRUPTED, is_complete=versions.is_complete)
    end(1 if versions.failures else 0, is_complete=versions.is_complete)


def _show(context: CliContext, versions: Versions, poll: float) -> None:
    """Print the versions; with an interval, again after each change, without an end."""
    shown: Json = {}
    while True:
        found = versions.read()
        if _without_details(found) != shown:
            _print(context, found, again=bool(poll))
            for failure in versions.failures:
                echo(f"Error: {failure.as_text()}", err=True)
            shown = _without_details(found)
        if not poll:
            return
        sys.stdout.flush()
        time.sleep(poll)


def _without_details(found: Json) -> Json:
    """Return the document without the texts of errors, which have durations and numbers of processes."""
    parts = ((name, part or {}) for name, part in found.items())
    return {name: {**part, "error": part.get("error") is not None} for name, part in parts}


def _cluster(context: CliContext) -> Json | None:
    target = context.target
    if target.is_missing and not target.origin:
        return None
    context.require_store(target, create=False)
    with closing(context.without_version_check.open_present(target.settings, target.names)) as store:
        return {**cluster_version(store, target.names), "datastore": str(target)}


def _agent(context: CliContext) -> Json | None:
    socket = context.run_dir / SOCKET_NAME
    if not (context.state_dir.exists() or socket.exists()):
        return None
    return {"version": ask_version(context.state_dir, socket, seconds=SECONDS)}


def _print(context: CliContext, found: Json, *, again: bool) -> None:
    if context.output == "json":
        echo_json(found, indent=None if again else 2)
    elif context.output == "yaml":
        if again:
            click.echo("---")
        echo_yaml([found])
    else:
        for line in _lines(found):
            click.echo(f"{line.label:<{_LABEL_COLUMNS}}{visible(line.text)}")


def _lines(found: Json) -> Iterator[Line]:
    yield Line("client version", found["client"]["version"])
    yield Line("client commit", found["client"]["commit"] or f"{_UNKNOWN}: svcctl was built outside of its repository")
    if "cluster" in found:
        yield from _cluster_lines(found["cluster"])
        agent = found["agent"]
        yield Line("agent version", _text(agent) if agent else "none: this machine has no state directory of an agent")


def _cluster_lines(cluster: Json | None) -> Iterator[Line]:
    if cluster is None:
        yield Line("cluster version", "none: no datastore is known, name one with --netconf")
        return
    yield Line("cluster version", _text(cluster))
    if cluster["error"] is None:
        yield Line("cluster types", ",".join(cluster["types"]) or _UNKNOWN)
        if cluster["svcVersion"] != cluster["version"]:
            yield Line("svc in cluster", cluster["svcVersion"] or _UNKNOWN)


def _text(part: Json) -> str:
    """Return the version, or why it is not known."""
    return f"{_UNKNOWN}: {part['error']['message']}" if part["error"] else part["version"] or _UNKNOWN
