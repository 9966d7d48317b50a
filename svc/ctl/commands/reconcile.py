"""svcctl reconcile."""

import sys
import time
from typing import Any, Final

import click

from svc.admin.agent_client import ask
from svc.admin.ipam_check.findings import CONFIRM_SECONDS
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext, output_option, table
from svc.ctl.terminal import echo

SECONDS: Final = 30.0  # for the reply: the agent limits a comparison to 20 s
FINDINGS: Final = 3  # exit status
_HEADINGS = ("ID", "OBJECT", "SINCE", "PROBLEM", "FIX")

Json = dict[str, Any]


@click.command()
@click.option("--no-wait", is_flag=True, help="Do not look again at what a call in flight may explain.")
@output_option
@click.pass_obj
def reconcile(context: CliContext, no_wait: bool) -> None:
    """Let the agent compare its journal, the interfaces and the datastore now, and show what it finds.

    \b
    The agent does so every 5 minutes by itself. If two comparisons, a minute apart, show that interface and sandbox of
    an attachment are gone, it tears the attachment down. Everything else is named, and never corrected.
    A contradiction is a finding if two comparisons show it: if this one is the first, the command waits a minute.
    Exit status: 0 no finding, 3 findings, 1 unable to tell.

    \b
    Examples:
      svcctl reconcile
      svcctl reconcile --no-wait -o json | jq .[0].unconfirmed
    """
    socket = context.run_dir / SOCKET_NAME
    ask(context.state_dir, socket, "calls")  # an agent that answers nothing is known after 3 s
    report = ask(context.state_dir, socket, "reconcile", seconds=SECONDS)
    if report["unconfirmed"] and not no_wait:
        _wait(report)
        report = ask(context.state_dir, socket, "reconcile", seconds=SECONDS)
    for error in report["errors"]:
        echo(f"warning: left out: {error}", err=True)
    findings = report["findings"]
    shown = table(_HEADINGS, [_cells(each) for each in findings]) if findings else _summary(report)
    context.answer([report], f"{shown}\njournal: {report['journal']}" if report.get("journal") else shown)
    if findings:
        sys.exit(FINDINGS)
    if report["errors"]:
        sys.exit(1)


def _wait(report: Json) -> None:
    listed = ", ".join(f"{number} {id_}" for id_, number in sorted(report["unconfirmed"].items()))
    seconds = report.get("confirm_seconds", CONFIRM_SECONDS)
    echo(f"waiting {seconds:.0f} s, to see again what a call in flight may explain: {listed}", err=True)
    time.sleep(seconds)


def _summary(report: Json) -> str:
    gone = f"; {report['gone']} without interface and sandbox" if report["gone"] else ""
    seen_once = sum(report["unconfirmed"].values())
    once = f"; {seen_once} contradictions were seen once: repeat this in a minute" if seen_once else ""
    return f"no findings in {report['attachments']} attachments{gone}{once}"


def _cells(finding: Json) -> list[str]:
    return [finding["id"], finding["object"], finding["since"], finding["problem"], finding["fix"]]
