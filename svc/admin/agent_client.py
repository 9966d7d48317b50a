"""Client for introspection requests to the agent. docs/reference/introspection.md describes requests and replies."""

import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import orjson

import svc
from svc.admin.agent_replies import FORMS, problems
from svc.cni.frame import FrameError, OtherVersion
from svc.cni.introspection_frame import REPLY_LIMIT, REQUEST_LIMIT, DocumentReader, pack_document
from svc.cni.locks import AGENT, DIRECTORY, DRAINING, STATE, Holder, LockFile, find_agent_elsewhere
from svc.model.errors import CallerError, Code, PeerError, reason_of

REPLY_SECONDS: Final = 3.0
_CHUNK: Final = 1 << 16
_CONNECT_SECONDS: Final = 0.01  # at least

Json = dict[str, Any]


class NoAgent(PeerError):
    """No agent answers: none runs, it is stopped, or the socket is that of another program."""

    code = Code.IO_FAILURE


class OldAgent(PeerError):
    """The agent is of a release without introspection."""

    code = Code.INCOMPATIBLE_VERSION

    def __init__(self, version: str) -> None:
        super().__init__(
            f"the agent is of version {version}, which cannot be inspected; svcctl is of {svc.__version__}",
            details="install the newer version of both, and restart svc-agent",
        )
        self.version = version


def ask(state_dir: Path, path: Path, kind: str, *, seconds: float = REPLY_SECONDS, **options: str) -> Json:
    """Return the data of a request to the agent that listens on `path`, or else to the one of the state directory.

    Raise NoAgent, OldAgent, or CallerError if the agent refuses the request. Each names the fix.
    """
    path, reply = _reply(state_dir, path, {"kind": kind, **options}, seconds)
    data = _data(reply)
    if kind in FORMS and (problem := next(problems(data, FORMS[kind]), "")):
        raise _foreign(path, problem)
    return data


def ask_version(state_dir: Path, path: Path, *, seconds: float = REPLY_SECONDS) -> str:
    """Return the version of the agent that `ask` would ask. Raise NoAgent.

    Each reply has the version, that of a refusal too. A request without a kind is refused at once."""
    try:
        path, reply = _reply(state_dir, path, {}, seconds)
    except OldAgent as other:
        return other.version
    version = reply.get("version")
    if not isinstance(version, str):
        raise _foreign(path, "version is missing or is not text")
    return version


def _reply(state_dir: Path, path: Path, request: dict[str, str], seconds: float) -> tuple[Path, Json]:
    """Return the socket of the agent that has answered, and its reply. Raise NoAgent, OldAgent."""
    until = time.monotonic() + seconds
    packed = pack_document(orjson.dumps(request), REQUEST_LIMIT)
    try:
        return path, _exchange(path, packed, until)
    except (FileNotFoundError, ConnectionRefusedError) as failure:
        other = find_agent_elsewhere(state_dir, path)
        if other is None:
            raise _not_running(state_dir, path, failure) from None
        path = Path(other.socket)
        return path, _checked(state_dir, path, packed, until)
    except OSError as failure:
        raise _unusable(state_dir, path, failure) from None


def _checked(state_dir: Path, path: Path, request: bytes, until: float) -> Json:
    try:
        return _exchange(path, request, until)
    except OSError as failure:
        raise _unusable(state_dir, path, failure) from None


def _exchange(path: Path, request: bytes, until: float) -> Json:
    """Return the reply. Raise OSError if none comes in time, OldAgent, or NoAgent for the reply of another program."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(max(until - time.monotonic(), _CONNECT_SECONDS))  # late or not: the kernel refuses at once
        connection.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):  # an agent that refuses may answer before it has read all
            connection.sendall(request)
        reader = DocumentReader(REPLY_LIMIT)
        try:
            document = None
            while document is None:
                _limit(connection, until)
                data = connection.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError("the connection was closed before the end of the reply")
                document = reader.feed(data)
            return _decoded(document)
        except OtherVersion as other:
            raise OldAgent(other.version or "unknown") from None
        except FrameError as failure:
            remedy = "name the agent's run directory with --run-dir"
            raise NoAgent(f"the program that listens on {str(path)!r} is not svc-agent: {failure}", details=remedy) from None


def _limit(connection: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _decoded(document: bytes) -> Json:
    try:
        reply = orjson.loads(document)
    except ValueError as failure:
        raise FrameError(f"its reply is not JSON: {failure}") from None
    if not isinstance(reply, dict) or not ("data" in reply or isinstance(reply.get("error"), dict)):
        raise FrameError("its reply has neither data nor an error")
    return reply


def _data(reply: Json) -> Json:
    if (refusal := reply.get("error")) is not None:
        field, value = refusal.get("field", ""), refusal.get("value")
        where = f"{field} = {orjson.dumps(value).decode()} " if field else ""
        agent = f"the agent (of version {reply.get('version', 'unknown')})"
        raise CallerError(f"{agent} refused: {where}{refusal.get('problem')}", details=str(refusal.get("remedy", "")))
    data: Json = reply["data"]
    return data


def _foreign(path: Path, problem: str) -> NoAgent:
    return NoAgent(
        f"what answers on {str(path)!r} is not an agent of version {svc.__version__}: in its reply, {problem}",
        details="restart svc-agent if it is of another version, or name the agent's run directory with --run-dir",
    )


def _not_running(state_dir: Path, path: Path, failure: OSError) -> NoAgent:
    holder = find_holder(state_dir)
    if holder.purpose == DRAINING:
        return NoAgent(f"the agent is stopping: {holder}", details="wait until it has ended, and start svc-agent")
    if holder.purpose == AGENT:
        return NoAgent(f"{holder} does not listen on {str(path)!r}", details=holder.fix)
    is_missing = isinstance(failure, FileNotFoundError)
    reason = f"socket {str(path)!r} does not exist" if is_missing else f"no process listens on {str(path)!r}"
    remedy = "start it: `systemctl start svc-agent`; or name its directories with --run-dir and --state-dir"
    return NoAgent(f"the agent does not run: {reason}", details=remedy)


def _unusable(state_dir: Path, path: Path, failure: OSError) -> PeerError:
    if isinstance(failure, PermissionError):
        return NoAgent(f"socket {str(path)!r} cannot be used: {failure.strerror}", details="run this as root")
    if isinstance(failure, (TimeoutError, BlockingIOError)):  # BlockingIOError: the backlog is full
        holder = find_holder(state_dir)
        fix = holder.fix if holder.is_stopped else "look at its log, and restart it if it does not recover"
        return NoAgent(f"the agent does not answer on {str(path)!r}: {holder}", details=fix)
    if isinstance(failure, ConnectionError):
        remedy = "run this as root; if you do, look at the agent's log"
        return NoAgent(f"the agent closed the connection on {str(path)!r}: {reason_of(failure)}", details=remedy)
    return NoAgent(f"socket {str(path)!r} cannot be used: {reason_of(failure)}", details="name another --run-dir")


def find_holder(state_dir: Path) -> Holder:
    """Return the process that holds the state, as far as its lock shows it."""
    file = state_dir / DIRECTORY / STATE
    with suppress(OSError):
        if file.exists():
            with closing(LockFile(file, reads=True)) as lock:
                return lock.holder()
    return Holder()
