"""svcctl status."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from svc.admin.node_status import EXIT_STATUS, NodeStatus, first_of, spooled
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext, echo_json, echo_yaml, output_option
from svc.ctl.datastore_summary import load_packages, named, summary
from svc.ctl.interrupts import INTERRUPTED, end
from svc.ctl.screen import Line, columns, duration, rendered, show, title
from svc.timestamps import date_and_time

SECONDS: Final = 0.85  # from the start of the process to the answer
MIN_SECONDS: Final = 0.4  # that the sources get, also if the process started slowly
MAX_SECONDS: Final = 5.0  # that the sources get on a busy machine
WATCH_SECONDS: Final = 2.0  # between two screens
MAX_LISTED: Final = 5  # entries of a list
_READY: Final = {True: ", ready", False: ", not ready", None: ""}

Json = dict[str, Any]


@click.command()
@click.option("--watch", is_flag=True, help="Show the status again every 2 s, until Ctrl-C.")
@output_option
@click.pass_obj
def status(context: CliContext, watch: bool) -> None:
    """Show whether this node can serve pods: the agent, datastores, pools, svc-routes, calls and pending releases.

    \b
    The answer comes within 1 s, also if the agent or a datastore does not answer.
    Exit status: 0 good, 3 degraded, 4 down (no agent answers).

    \b
    Examples:
      svcctl status
      svcctl status --watch
      svcctl status -o json | jq -r .verdict
    """
    socket = context.run_dir / SOCKET_NAME
    pools, names, load = lambda: summary(context), lambda: named(context), lambda: load_packages(context)
    node = NodeStatus(context.state_dir, socket, pools, names, load)
    seconds = _seconds(_process_age())
    try:
        while True:
            found = node.read(seconds)
            _print(context, found, again=watch)
            if not watch:
                end(EXIT_STATUS[found["verdict"]], is_complete=node.is_complete)
            sys.stdout.flush()
            time.sleep(WATCH_SECONDS)
            seconds = max(seconds, SECONDS)
    except KeyboardInterrupt:
        end(INTERRUPTED, is_complete=node.is_complete)


def _seconds(age: float) -> float:
    """Return how long the sources have to answer. A machine that took longer to start this process is busy: so do they."""
    return max(MIN_SECONDS, SECONDS - age, min(age, MAX_SECONDS) if age > SECONDS else 0.0)


def _process_age() -> float:
    """Return the seconds since the start of this process: field 22 of proc(5), counted from the end of the name."""
    try:
        with open("/proc/self/stat") as file, open("/proc/uptime") as uptime:
            ticks = int(file.read().rpartition(")")[2].split()[19])
            return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _print(context: CliContext, found: Json, *, again: bool) -> None:
    if context.output == "json":
        echo_json(found, indent=None if again else 2)
    elif context.output == "yaml":
        if again:
            click.echo("---")
        echo_yaml([found])
    else:
        nodes = ", ".join(found["nodes"]) or os.uname().nodename
        show(title(f"svc on {nodes}", found["verdict"]), rendered(lines_of(found), columns()), again=again)


def lines_of(found: Json) -> Iterator[Line]:
    """Yield the lines of the screen."""
    state = found["state"]
    yield Line("agent", _agent(state["agent"]) if state and state["agent"] else "does not answer")
    for store in found["datastores"]:
        yield Line("datastore", _store(store))
    if found["datastore"]:
        yield from _listed("pools", [_pool(pool) for pool in found["datastore"]["pools"]] or ["none"])
    for token in (state or {}).get("tokens") or ():
        if token["seconds_left"] is not None:
            yield Line("token", f"for {token['server']}: {_left(token['seconds_left'])}")
    if state and state["queue"]:
        yield Line("calls", _calls(state))
        yield from _listed("", [_parked(call) for call in state["parked"] or ()])
    if found["routes"]:
        yield Line("routes", _routes(found["routes"]))
    if found["attachments"] is not None:
        yield Line("attachments", _counted(found["attachments"]))
    if found["spool"] and (number := found["spool"]["number"]):
        yield Line("spool", f"{spooled(number)} since {date_and_time(found['spool']['since'])}")
    if state and state.get("reconciliation"):
        yield Line("compared", _compared(state["reconciliation"]))
    yield from _listed("releases", [_release(release) for release in found["pending_releases"] or ()])
    yield from _listed("errors", [_error(error) for error in (state or {}).get("errors") or ()])
    yield from _listed("problems", [_problem(problem) for problem in found["problems"]])


def _listed(label: str, texts: Sequence[str]) -> Iterator[Line]:
    shown = [*texts[:MAX_LISTED], *([f"and {len(texts) - MAX_LISTED} more"] if len(texts) > MAX_LISTED else [])]
    for number, text in enumerate(shown):
        yield Line("" if number else label, text)


def _agent(agent: Json) -> str:
    return f"up {duration(agent['uptime_seconds'])}, version {agent['version']}, process {agent['pid']}"


def _store(store: Json) -> str:
    words = {None: "not asked yet", False: "down", True: "up"}[store["is_up"]]
    if store["is_up"]:
        words = _probed(store) if store["is_outdated"] else f"{words}{_READY[store['is_ready']]}"
    if store["is_up"] is None and store["is_open"]:
        words = "open"
    held = f", ADDs are held for {store['held_seconds']:.0f} s" if store["held_seconds"] else ""
    networks = f", network {', '.join(store['networks'])}" if store["networks"] else ""
    return f"{words}{held}: {store['place'].removeprefix('datastore ')}{networks}"


def _probed(store: Json) -> str:
    """Return what the last probe of the agent found, with its age."""
    ago = f" {duration(max(0.0, time.time() - store['checked']))} ago" if store["checked"] else ""
    return f"was up{_READY[store['is_ready']].replace(',', ' and')}{ago}"


def _pool(pool: Json) -> str:
    used, capacity = pool["in_use"], pool["capacity"]
    reserved = f", {pool['reserved']} reserved" if pool["reserved"] else ""
    return f"{pool['name']} {pool['cidr']}: {100 * used / capacity:.0f} % used ({used} of {capacity}{reserved})"


def _routes(report: Json) -> str:
    """Return the state of svc-routes, its routes, and what it lacks."""
    words = [report["state"], f"{report['remainingRoutes'] or report['routes']} routes"]
    words += [f"{missing} networks without one"] if (missing := sum(report["missing"].values())) else []
    words += [f"{conflicts} conflicts"] if (conflicts := report["conflicts"]) else []
    words += [f"{held} kept that are not wanted"] if (held := report["heldDeletions"]) else []
    return ", ".join(words) + (f": {report['traces'][0]}" if report["traces"] else "")


def _left(seconds: float) -> str:
    return f"ends in {duration(seconds)}" if seconds > 0 else f"ended {duration(-seconds)} ago"


def _calls(state: Json) -> str:
    queue, workers = state["queue"], state["queue"]["workers"]
    waits = f"{queue['waiting']} waiting, {queue['running']} running, {len(state['parked'] or ())} parked"
    return f"{waits}; {workers['threads'] - workers['idle']} of {workers['max']} workers occupied"


def _parked(call: Json) -> str:
    now, who = time.time(), call.get("pod") or call.get("container", "")
    left = duration(call["deadline"] - now)
    return f"{call.get('verb', '')} {who}, for {duration(now - call['since'])} of {left} more: {call['waits_for']}"


def _counted(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"


def _compared(report: Json) -> str:
    number = len(report["findings"])
    if report["time"] is None:
        return f"not yet, {number} findings"
    torn_down = f", {report['torn_down']} torn down since the start" if report["torn_down"] else ""
    counted = f"{_ago(report['time'])}, {number} findings in {report['attachments']} attachments"
    return f"{_incomplete(report) if report.get('errors') else counted}{torn_down}"


def _incomplete(report: Json) -> str:
    """Return what is known although a datastore could not be compared: no number of findings."""
    complete, known = report.get("complete"), len(report["findings"])
    found = f"unknown, at least {known}" if known else "unknown"
    last = f"{complete['findings']} findings {_ago(complete['time'])}" if complete else "none since the agent's start"
    why = first_of(report["errors"])
    return f"{_ago(report['time'])}, findings: {found}, incomplete ({why}); last complete comparison: {last}"


def _ago(moment: float) -> str:
    return f"{duration(max(0.0, time.time() - moment))} ago"


def _release(release: Json) -> str:
    who = release["pod"] or f"{release['container'][:13]} {release['ifname']}"
    age = f"for {duration(time.time() - release['since'])}" if release["since"] else "since an unknown time"
    return f"{who}, {age}: {release['reason'] or 'the reason is not recorded'}"


def _error(error: Json) -> str:
    ago = f", {duration(max(0.0, time.time() - error['time']))} ago," if error["time"] else ""
    return f"{_when(error['time'])}{ago} {error['source']}: {error['message']}"


def _when(moment: float | None) -> str:
    """Return the time of day, in UTC as in the log."""
    return date_and_time(moment)[11:] if moment else ""


def _problem(problem: Json) -> str:
    return f"{problem['text']}{': ' + problem['fix'] if problem['fix'] else ''}"
