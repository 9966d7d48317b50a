"""svcctl ipam release."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from svc._core.cidr import Address
from svc.admin.ipam_check import saved_report
from svc.admin.ipam_check.local_uses import LocalUses, used_here
from svc.admin.ipam_check.release import READY, REFUSED, Outcome, carry_out, examine
from svc.admin.ipam_check.report import cluster_fields
from svc.admin.release_record import acknowledge, present_stop
from svc.ctl.address_option import parse_address
from svc.ctl.cli_context import CliContext, Target, output_option
from svc.ctl.commands.ipam_check import listed_documents, node_name, place_of
from svc.ctl.path_option import PATH
from svc.ctl.terminal import echo, visible
from svc.datastore.api import Backend
from svc.ipam.requests import ReleaseTarget
from svc.model.errors import CallerError

_EXAMPLES = """
\b
Examples:
  svcctl ipam release --ip 10.65.0.7 --handle pods.4f2a --sequence 1763900000000000007
  svcctl ipam release --from-report before.json --from-report after.json --dry-run
  svcctl ipam release --acknowledge
"""

Work = tuple[Sequence[ReleaseTarget], Sequence[tuple[str, str]]]
"""Addresses, and handles with their revisions."""


@click.command(epilog=_EXAMPLES)
@click.option("--ip", "address", metavar="ADDRESS", callback=parse_address, help="Release this address.")
@click.option("--handle", default="", help="With --ip: only if it is allocated to this handle.")
@click.option("--sequence", type=click.IntRange(0), metavar="NUMBER", help="With --ip: only the allocation with this number.")
@click.option(
    "--from-report",
    "files",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Release what this report of `ipam check` shows unused; with several, what all of them do. - is standard input.",
)
@click.option("--acknowledge", "is_acknowledgement", is_flag=True, help="Let the controllers release addresses after a stop.")
@click.option("--dry-run", is_flag=True, help="Show what would be released.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Accept another version, no lock, and nodes that are gone for good.")
@output_option
@click.pass_context
def release_command(
    click_context: click.Context,
    address: Address | None,
    handle: str,
    sequence: int | None,
    files: Sequence[Path],
    is_acknowledgement: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
) -> None:
    """Release addresses that nothing uses, and delete handles without addresses.

    Each is checked again first. An address that an endpoint, a pod, a tunnel, a service or this node uses is refused, also with
    --force. On etcd, only its own node releases an address whose pod merely lacks its endpoint; with --force another machine
    does, if no agent of the node shows up within 15 s. Exit status: 1 if anything was refused.

    With --acknowledge, allow the controllers the releases that they have stopped before, because they were so many.
    """
    context: CliContext = click_context.obj
    if is_acknowledgement:
        if address is not None or files or handle or sequence is not None or force:
            raise click.UsageError("--acknowledge takes only --dry-run and --yes: the controllers choose the addresses")
        _acknowledge(context, is_dry=dry_run, is_agreed=yes)
        return
    _require_usage(address, bool(handle or sequence is not None), files)
    if saved_report.STDIN in files and (files.count(saved_report.STDIN) > 1 or not (yes or dry_run)):
        raise click.UsageError("--from-report - reads standard input: give it once, and with it --yes or --dry-run")
    target = context.target
    with listed_documents(), context.store(target) as store, place_of(target, store) as place:
        if address is not None:
            work: Work = [ReleaseTarget(address, handle, sequence)], []
        else:
            work = _reported(store, files, force=force)
        outcomes = examine(place, *work, _local_uses(context, target), is_forced=force)
        if not dry_run:
            if not yes and _is_confirmed(outcomes):
                # the answer may be late
                outcomes = examine(place, *_agreed(work, outcomes), _local_uses(context, target), is_forced=force)
            outcomes = _shown(context, carry_out(store, outcomes))
        _answer(context, outcomes, is_shown=not dry_run)
    echo(f"datastore: {target}", err=context.output != "table")
    click_context.exit(int(any(outcome.result == REFUSED for outcome in outcomes)))


def _local_uses(context: CliContext, target: Target) -> LocalUses:
    """Return what this node uses. Its name may be unclear, or this is the machine of an administrator."""
    node = ""
    if not target.is_embedded:
        with suppress(CallerError):
            node = node_name(context, target)
    return LocalUses(used_here(context.state_dir), node, is_shared=not target.is_embedded)


def _acknowledge(context: CliContext, *, is_dry: bool, is_agreed: bool) -> None:
    """Show the stop of the controllers, and acknowledge it if the user agrees."""
    target = context.target
    with context.store(target) as store:
        stop = present_stop(store, target.names)
        echo(visible(f"stopped at {stop.id}: {stop.message}"), err=True)
        if not is_dry:
            if not is_agreed:
                click.confirm(f"Let the controllers release about {stop.wanted} addresses?", abort=True, err=True)
            acknowledge(store, target.names, stop)
    document = {"stop": stop.id, "reason": stop.reason, "addresses": stop.wanted, "acknowledged": not is_dry}
    done = "would be acknowledged" if is_dry else "is acknowledged: svc-controllers releases what still looks leaked"
    context.answer([document], f"the stop of {stop.id} {done}")
    echo(f"datastore: {target}", err=context.output != "table")


def _require_usage(address: Address | None, has_details: bool, files: Sequence[Path]) -> None:
    if (address is None) == (not files):
        raise click.UsageError("give one of --ip ADDRESS, --from-report FILE and --acknowledge")
    if files and has_details:
        raise click.UsageError("--handle and --sequence go with --ip: a report has those of each address")


def _reported(store: Backend, files: Sequence[Path], *, force: bool) -> Work:
    """Return what all reports show unused. Raise CallerError if they do not fit the datastore."""
    reports = [saved_report.read(file) for file in files]
    present = cluster_fields(store)
    saved_report.require_same_cluster(reports, present)
    objections = tuple(saved_report.objections(reports, present))
    if objections and not force:
        error = CallerError("; ".join(objections), details="or repeat the command with --force")
        error.subject, error.errors = "nothing was released (--force overrides this)", objections
        raise error
    return saved_report.common(reports)


def _agreed(work: Work, outcomes: Sequence[Outcome]) -> Work:
    """Return the same with the allocations that the user has seen, so that later ones of these addresses stay."""
    targets, handles = work
    return [outcome.target or target for target, outcome in zip(targets, outcomes, strict=False)], handles


def _is_confirmed(outcomes: Sequence[Outcome]) -> bool:
    """Return whether the user was asked, and agreed. Raise Abort for another answer."""
    ready = [outcome for outcome in outcomes if outcome.result == READY]
    if ready:
        for outcome in outcomes:
            echo(_line(outcome), err=True)
        click.confirm(f"Release {len(ready)} of {len(outcomes)}?", abort=True, err=True)
    return bool(ready)


def _shown(context: CliContext, outcomes: Iterator[Outcome]) -> list[Outcome]:
    """Print each outcome as soon as it is known, unless the output is for programs."""
    found = []
    for outcome in outcomes:
        found.append(outcome)
        if context.output == "table":
            echo(_line(outcome))
    return found


def _answer(context: CliContext, outcomes: Sequence[Outcome], *, is_shown: bool) -> None:
    counts = Counter(outcome.result for outcome in outcomes)
    total = ", ".join(f"{number} {result}" for result, number in counts.items()) or "nothing to release"
    lines = [] if is_shown else [_line(outcome) for outcome in outcomes]
    context.answer([_document(outcome) for outcome in outcomes], "\n".join([*lines, total]))


def _line(outcome: Outcome) -> str:
    return visible(f"{outcome.object} {outcome.result}{f': {outcome.reason}' if outcome.reason else ''}")


def _document(outcome: Outcome) -> dict[str, Any]:
    return {"object": outcome.object, "result": outcome.result, "reason": outcome.reason}
