"""svcctl ipam check."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Final

import click

from svc.admin.ipam_check import report
from svc.admin.ipam_check.check import Result, Wait, check
from svc.admin.ipam_check.findings import Finding
from svc.admin.ipam_check.node import NodePlace, NodeResult, check_node
from svc.admin.ipam_check.node_name import ask_agent, configured_name, recorded_name
from svc.admin.ipam_check.observation import Place
from svc.admin.ipam_check.verdicts import COOLDOWN, UNVERIFIABLE, USED
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext, Target, output_option, table
from svc.ctl.path_option import PATH
from svc.ctl.terminal import echo, visible
from svc.datastore import api
from svc.datastore.api import Backend
from svc.datastore.open import open_client
from svc.ipam.errors import shortened
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

FINDINGS_STATUS: Final = 3
_COLUMNS: Final = ("ID", "OBJECT", "NODE", "SINCE", "PROBLEM")
_EXAMPLES: Final = """
\b
Examples:
  svcctl ipam check
  svcctl ipam check -o json --no-wait
  svcctl ipam check --report /root/ipam.json
  svcctl ipam check --node
"""


@dataclass(frozen=True, slots=True)
class _Shown:
    """The output of a check: for programs, and for people."""

    document: dict[str, Any]
    text: str


@click.command(epilog=_EXAMPLES)
@click.option(
    "--report", "file", type=PATH, metavar="FILE", help="Also write every allocation and finding to FILE (mode 0600)."
)
@click.option("--node", is_flag=True, help="Check this node: its agent's records, its interfaces and its allocations.")
@click.option("--no-wait", is_flag=True, help="Leave out what must be seen twice, such as what an ADD in flight looks like.")
@output_option
@click.pass_context
def check_command(click_context: click.Context, file: Path | None, node: bool, no_wait: bool) -> None:
    """Compare blocks, affinities, handles, endpoints and pods, and show what contradicts each other.

    Nothing is changed. Exit status: 0 without findings, 3 with findings, 1 if the datastore cannot be read.
    """
    context: CliContext = click_context.obj
    if file is not None:
        if node:
            raise click.UsageError("--node and --report exclude each other: a report has the allocations of all nodes")
        report.require_writable(file)
    target = context.target
    with listed_documents(), context.store(target) as store, place_of(target, store) as place:
        wait = _leave_out if no_wait else _wait
        shown = _checked_node(context, target, place, wait) if node else _checked(place, file, wait)
    context.answer([shown.document], shown.text)
    click_context.exit(FINDINGS_STATUS if shown.document["findings"] else 0)


@contextmanager
def listed_documents() -> Iterator[None]:
    """Log no document that cannot be decoded, because the findings list it."""

    def is_wanted(_record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger(api.__name__)
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


@contextmanager
def place_of(target: Target, store: Backend) -> Iterator[Place]:
    """Yield the datastore with the Kubernetes API that the network configuration names, if any."""
    netconf, names = target.netconf, target.names
    wired = frozenset({netconf.name} if netconf is not None and netconf.type == names.plugin else ())
    if target.settings["kind"] == "orch":
        yield Place(store, names, _client_of(store), pods_are_endpoints=True, wired_networks=wired)
    elif netconf is not None and netconf.policy:
        with closing(open_client(dict(netconf.orchestrator))) as client:
            yield Place(store, names, client, wired_networks=wired)
    else:
        yield Place(store, names, wired_networks=wired)


def _client_of(store: Backend) -> "Client":
    from svc.datastore.orch.store import OrchStore  # loaded already, with the store

    assert isinstance(store, OrchStore)
    return store.client


def _wait(seconds: float, counts: Mapping[str, int]) -> bool:
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    echo(f"waiting {seconds:.0f} s, to see again what a call in flight may explain: {listed}", err=True)
    sleep(seconds)
    return True


def _leave_out(_seconds: float, _counts: Mapping[str, int]) -> bool:
    return False


def node_name(context: CliContext, target: Target) -> str:
    """Return the name of this node. Raise CallerError if it is not clear; warn if the agent does not answer."""
    agents, failure = ask_agent(context.state_dir, context.run_dir / SOCKET_NAME, target.settings)
    if failure is not None:
        click.echo(f"warning: {failure.msg}: its journal is read", err=True)
    configured = configured_name(target.netconf, target.names)
    return recorded_name(context.state_dir, target.settings, configured, agents, os.uname().nodename)


def _checked(place: Place, file: Path | None, wait: Wait) -> _Shown:
    """Check the datastore, and write the report."""
    result = check(place, wait)
    if file is not None:
        report.save(file, result)
    shown = _shown(result)
    return _Shown(shown.document, f"{shown.text}\nreport: {file}") if file is not None else shown


def _shown(result: Result) -> _Shown:
    states = result.verdicts.count()
    summary = {
        "blocks": len(result.observation.blocks),
        "allocations": sum(states.values()),
        "inUse": states[USED],
        "unverifiable": states[UNVERIFIABLE],
        "coolingDown": states[COOLDOWN],
        "findings": len(result.findings),
    }
    text = f"{summary['findings']} findings in {summary['blocks']} blocks with {summary['allocations']} addresses:"
    text += f" {summary['inUse']} in use, {summary['coolingDown']} in cooldown, {summary['unverifiable']} unverifiable"
    lines = [*_listed(result.findings), text, *_seen_once(result.unconfirmed)]
    return _Shown(_document(summary, result.findings, result.unconfirmed), "\n".join(lines))


def _checked_node(context: CliContext, target: Target, place: Place, wait: Wait) -> _Shown:
    """Check this node."""
    result = check_node(NodePlace(place, target.settings, node_name(context, target), context.state_dir), wait)
    return _shown_node(result)


def _shown_node(result: NodeResult) -> _Shown:
    found = result.observation
    summary = {
        "node": found.node,
        "attachments": len(found.rows),
        "interfaces": len(found.links),
        "allocations": sum(each.owner.get("node") == found.node for each in found.held.values()),
        "findings": len(result.findings),
    }
    text = f"{summary['findings']} findings on node {found.node}: {summary['attachments']} attachments, "
    text += f"{summary['interfaces']} interfaces, {summary['allocations']} addresses"
    lines = [*_listed(result.findings), text, *_seen_once(result.unconfirmed), f"journal: {found.journal}"]
    document = _document(summary, result.findings, result.unconfirmed) | {"journal": found.journal}
    return _Shown(document, "\n".join(lines))


def _document(summary: Mapping[str, Any], findings: Sequence[Finding], unconfirmed: Mapping[str, int]) -> dict[str, Any]:
    return {"summary": summary, "findings": [each.to_json() for each in findings], "unconfirmed": dict(unconfirmed)}


def _listed(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the table of findings, and the fix of each."""
    if findings:
        yield from (_table(findings), "", *(visible(f"Fix {each.id} {each.object}: {each.fix}") for each in findings), "")


def _seen_once(unconfirmed: Mapping[str, int]) -> Iterator[str]:
    if unconfirmed:
        yield "seen once only: " + ", ".join(f"{count} {name}" for name, count in sorted(unconfirmed.items()))


def _table(findings: Sequence[Finding]) -> str:
    rows = [[each.id, each.object, each.node, each.since, _problem(each)] for each in findings]
    return table(_COLUMNS, rows)


def _problem(finding: Finding) -> str:
    """Return the problem in one line, with the addresses unless the finding is about one of them."""
    addresses = [address for address in finding.addresses if address != finding.object]
    listed = f" ({', '.join(shortened(addresses))})" if addresses else ""
    return " ".join(f"{finding.problem}{listed}".split())
