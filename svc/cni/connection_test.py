"""Connection test of the executable's option -t: check whether an ADD with this network configuration reaches its servers.

It creates nothing: an embedded store that does not exist is a failure.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import TypeVar

from svc import deadline
from svc.attach.context import NamesOf
from svc.attach.sessions import SessionPool
from svc.cni.call_io import CallInput
from svc.cni.verbs import session_key
from svc.model.errors import PeerError, SvcError
from svc.netconf import netconf as netconfs

LIMIT = 2.0  # seconds for each step

_Result = TypeVar("_Result")


def probe(names_of: NamesOf, sessions: SessionPool, inputs: CallInput) -> tuple[int, str]:
    """Return the exit status and a line for each step and for each of several field errors. A failure is the last step."""
    lines = []
    try:
        for what, outcome in _outcomes(names_of, sessions, inputs):
            lines.append(f"{what}: {outcome}\n")
    except SvcError as error:
        return 1, "".join([*lines, f"{error.as_text()}\n"])
    return 0, "".join(lines)


def _outcomes(names_of: NamesOf, sessions: SessionPool, inputs: CallInput) -> Iterator[tuple[str, str]]:
    names = names_of(inputs.profile)
    netconf = netconfs.parse(inputs.stdin, names)
    yield "network configuration", "ok"
    where = session_key(netconf, names, inputs.profile)
    kind = where.datastore["kind"]
    session = _in_time(f"datastore {kind}", lambda: sessions.get(names, where.datastore, where.node))
    _in_time(f"datastore {kind}", session.require_ready)
    yield f"datastore {kind}", "ok, ready"
    if kubeconfig := dict(netconf.orchestrator).get("kubeconfig"):
        yield "API server", _in_time("API server", lambda: f"ok, {server_version(kubeconfig)}")


def server_version(kubeconfig: str) -> str:
    """Return the version of the API server. Raise CallerError for an unusable file, StoreError if the server fails."""
    from svc.datastore.orch.auth import ApiAuth  # takes 0.2 s, and most networks do not need it
    from svc.datastore.orch.client import Client

    with deadline.limit(LIMIT / 2), closing(Client(ApiAuth({"kubeconfig": kubeconfig}))) as client:
        return str(client.get("/version")["gitVersion"])


def _in_time(what: str, step: Callable[[], _Result]) -> _Result:
    """Return the result of the step or raise its exception. Raise PeerError after 2 s; the thread of the step continues."""
    outcome = ThreadPoolExecutor(1).submit(step)
    if not wait([outcome], LIMIT).done:
        raise PeerError(
            f"{what}: no answer within {LIMIT:g} s", details="see whether it runs, and whether the address is right"
        )
    return outcome.result()
