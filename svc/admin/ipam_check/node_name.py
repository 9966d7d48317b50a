"""The name of this node, as the journal, the agent and the network configuration have it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from svc.admin.agent_client import NoAgent, OldAgent, ask, find_holder
from svc.admin.node_state import journal_path
from svc.attach.journal_reader import read_every_row
from svc.attach.places import datastore_place
from svc.attach.token_cache import without_secrets
from svc.cni.locks import AGENT
from svc.model.errors import CallerError, SvcError
from svc.names import Names
from svc.netconf.netconf import NetConf
from svc.netconf.node_files import node_name


def configured_name(netconf: NetConf | None, names: Names) -> str:
    """Return the name that the network configuration or the node agent's file gives; empty if none does. Raise PeerError."""
    with suppress(CallerError):
        return node_name(netconf, names, "") if netconf is not None else ""
    return ""


def recorded_name(state_dir: Path, settings: Mapping[str, str], configured: str, agents: Iterable[str], host: str) -> str:
    """Return the name under which the attachments of a datastore are allocated; without any, that of the agent, or the host's.

    Raise CallerError if the sources disagree, StoreError if the journal cannot be read.
    """
    own = without_secrets(dict(settings))
    rows = read_every_row(journal_path(state_dir))
    journalled = {record.node for record in rows if record.node and record.settings == own}
    known = journalled or set(agents)
    names = known | ({configured} if configured else set())
    if len(names) > 1:
        origin = "journal" if journalled else "agent"
        source = f"; the network configuration: {configured}" if configured else ""
        raise CallerError(
            f"the name of this node is not clear: the {origin} has {', '.join(sorted(known))}{source}",
            details="name the network configuration of the agent with --netconf, with the nodename of the attachments",
        )
    return names.pop() if names else host.lower()


def ask_agent(state_dir: Path, socket: Path, settings: Mapping[str, str]) -> tuple[set[str], SvcError | None]:
    """Return the agent's names of this node in a datastore, and why a running agent does not answer."""
    try:
        state = ask(state_dir, socket, "state")
    except (NoAgent, OldAgent) as failure:
        is_running = isinstance(failure, OldAgent) or find_holder(state_dir).purpose == AGENT
        return set(), failure if is_running else None
    place = datastore_place(settings)
    return {each["node"] for each in state.get("datastores") or () if each["place"] == place and each["node"]}, None
