"""Past calls of a container, as the agent remembers them."""

from collections.abc import Iterator
from typing import Any

from svc.admin.agent_client import ask
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.cli_context import CliContext
from svc.ctl.screen import printable
from svc.model.errors import CallerError
from svc.timestamps import date_and_time

Json = dict[str, Any]


def explain_calls(context: CliContext, container: str) -> None:
    """Print the calls of the containers whose ID begins so. Raise CallerError if none is remembered, NoAgent, OldAgent."""
    found = ask(context.state_dir, context.run_dir / SOCKET_NAME, "calls", container=container)
    if not found["calls"]:
        raise CallerError(
            f"no call of container {container!r} is remembered",
            details="the agent remembers the last 1,000 since its start; see the log file of the network for earlier ones",
        )
    context.answer(found["calls"], "\n\n".join("\n".join(_lines(call)) for call in found["calls"]))


def _lines(call: Json) -> Iterator[str]:
    where = " ".join(filter(None, (call.get("container"), call.get("ifname"))))
    when = date_and_time(call["time"]) if call["time"] else ""
    yield printable(f"{when} {call.get('verb', 'call')} {where} {call['outcome']} [{call['request']}]")
    yield from (f"  {label:<10}{printable(text)}" for label, text in _parts(call))
    yield from (f"  {printable(line)}" for line in call["lines"][:-1])


def _parts(call: Json) -> Iterator[tuple[str, str]]:
    """Yield what is known of a call, each with a label."""
    yield from ((name, call[name]) for name in ("network", "pod") if call.get(name))
    yield "message", call["message"]
    if call["phases"]:
        yield "phases", ", ".join(f"{name} {milliseconds:g} ms" for name, milliseconds in call["phases"].items())
    yield from (("decision", text) for text in call["decisions"])
