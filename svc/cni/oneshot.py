"""A call without an agent: the executable runs it if none answers. Same verbs, same results, slower.

Standard input holds the network configuration; the environment is the runtime's.
"""

import os
import sys
from contextlib import ExitStack, closing, suppress

from svc import deadline
from svc.attach import oneshot_calls
from svc.attach.context import Context
from svc.attach.sessions import OpenBackend, SessionPool
from svc.call_trace import CallTrace, log_to_stderr, new_request_id
from svc.cni.call_io import CallInput, Reply
from svc.cni.handler import failed_before_start, handle_call
from svc.cni.install_record import InstallRecord, read_record
from svc.cni.locks import StateLock, find_agent_elsewhere, is_agent_listening
from svc.datastore.api import StoreError
from svc.datastore.open import open_backend
from svc.model.errors import Code, PeerError, SvcError
from svc.names import DEFAULT
from svc.netconf.names_profiles import Profiles
from svc.private_directory import UnsafeDirectory
from svc.values import dataclass, replace
from svc.waits.wait import Resumable, Wait, WaitOutcome

AGENT_SECONDS = 90.0  # the executable waits as long
ALONE_SECONDS = 90.0  # limit for the lock; the same, because the runtime waits no longer
_COUNT_SECONDS = 0.2  # limit for counting a call in a locked journal
AGENTS = 10  # agents that may start and end during one call


@dataclass(frozen=True, slots=True)
class _Options:
    """The name that the executable was called by, and the record of the installation.

    `intent` is the generation of the call's row in the journal, if an agent has begun it. `test` says to test the servers that
    the network configuration names, and no more.
    """

    name: str
    install: str
    intent: str
    test: bool


def main() -> int:
    """Carry out one call and write its reply to the standard streams. Return the exit status."""
    options = _read_options(sys.argv[1:])
    log_to_stderr("WARNING")
    damaged = None
    try:
        installed = read_record(options.install, DEFAULT)
    except PeerError as error:
        installed, damaged = read_record("", DEFAULT), error
    intent = options.intent.encode()
    inputs = CallInput(options.name, os.environ, sys.stdin.buffer.read(), profile=installed.profile, continuation=intent)
    if damaged:
        reply = failed_before_start(inputs, damaged, CallTrace(new_request_id()))
    else:
        reply = _test(inputs, installed) if options.test else _answer(inputs, installed)
    for stream, text in ((sys.stderr, reply.stderr), (sys.stdout, reply.stdout)):
        stream.buffer.write(text)
        stream.flush()
    if options.test:
        os._exit(reply.status)  # do not join threads that still wait for a server
    return reply.status


def _read_options(arguments: list[str]) -> "_Options":
    """Read the command line without argparse, which takes a tenth of the time of a call. Exit with status 1 if it is wrong."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for option in rest:
        found[option] = "yes" if option == "--test" else next(rest, "")
    if "--name" not in found or not found.keys() <= {"--name", "--install", "--intent", "--test"}:
        sys.exit("usage: python -m svc.cni --name NAME [--install FILE] [--intent GENERATION] [--test]")
    return _Options(found["--name"], found.get("--install", ""), found.get("--intent", ""), "--test" in found)


def _test(inputs: CallInput, installed: InstallRecord) -> Reply:
    from svc.cni.connection_test import probe  # only the test needs it

    status, lines = probe(Profiles().get, SessionPool(_opener(installed, create=False)), inputs)
    return Reply(status, lines.encode(errors="backslashreplace"), b"")


def _opener(installed: InstallRecord, *, create: bool = True) -> OpenBackend:
    return lambda settings, names: open_backend(settings, installed.state_dir, names, create=create)


def _answer(inputs: CallInput, installed: InstallRecord) -> Reply:
    trace = CallTrace(new_request_id())
    try:
        if inputs.environment.get("CNI_COMMAND") == "STATUS":
            _require_no_agent_elsewhere(installed, Code.NOT_AVAILABLE)
            raise PeerError("not ready: the agent is not running", details="start svc-agent", code=Code.NOT_AVAILABLE)
        is_del = inputs.environment.get("CNI_COMMAND") == "DEL"
        with closing(StateLock(installed.state_dir, _purpose(inputs), reads=is_del)) as lock:
            return _run_or_forward(lock, inputs, installed, trace)
    except SvcError as error:
        return failed_before_start(inputs, error, trace)
    except OSError as failure:
        unusable = PeerError(
            f"state directory {str(installed.state_dir)!r} cannot be used: {failure.strerror}",
            details=failure.fix
            if isinstance(failure, UnsafeDirectory)
            else "the plugin runs as root and keeps its journal there; start svc-agent, or make the directory writable",
            code=Code.IO_FAILURE,
        )
        return failed_before_start(inputs, unusable, trace)


def _require_no_agent_elsewhere(installed: InstallRecord, code: Code) -> None:
    """Raise PeerError if an agent serves the state directory on a socket that the executable does not know."""
    agent = find_agent_elsewhere(installed.state_dir, installed.socket)
    if agent is not None:
        raise PeerError(
            f"an agent, process {agent.pid}, runs on state directory {str(installed.state_dir)!r}, but it listens on "
            f"{agent.socket!r} and not on {str(installed.socket)!r}",
            details=f"repeat `svcctl install` with --socket {agent.socket}, "
            f"or restart the agent with --socket {installed.socket}",
            code=code,
        )


def _is_node_served(installed: InstallRecord) -> bool:
    if is_agent_listening(installed.socket):
        return True
    _require_no_agent_elsewhere(installed, Code.IO_FAILURE)
    return False


def _purpose(inputs: CallInput) -> str:
    words = (inputs.environment.get(name, "") for name in ("CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME"))
    return " ".join(filter(None, words))


def _run_or_forward(lock: StateLock, inputs: CallInput, installed: InstallRecord, trace: CallTrace) -> Reply:
    """Carry out the call here, or forward it to an agent that has started. If that agent ends first, carry it out here."""
    for turn in range(2 * AGENTS):
        reply = _forward_to_agent(inputs, installed) if turn % 2 else _run_locked(lock, inputs, installed, trace)
        if reply is not None and not reply.intent:
            return reply
        if reply is not None:
            inputs = replace(inputs, continuation=str(reply.intent).encode())
    raise PeerError("the agent starts and ends again and again", details="see why in its log", code=Code.IO_FAILURE)


def _steps(inputs: CallInput, installed: InstallRecord, trace: CallTrace) -> Resumable[Reply]:
    context = Context(Profiles().get, installed.state_dir, _opener(installed))
    try:
        reply = yield from handle_call(context, inputs, trace)
        if not reply.intent:
            with deadline.limit(_COUNT_SECONDS), suppress(StoreError):  # the journal has reported its errors to the call
                oneshot_calls.count_call(context.journal)
        return reply
    finally:
        context.close()


def _run_locked(lock: StateLock, inputs: CallInput, installed: InstallRecord, trace: CallTrace) -> Reply | None:
    """Carry out the call under the lock, which is free while the call waits.

    If an agent has started to serve the node: return None before the first step, later a reply with the intent to hand over.
    """
    steps = _steps(inputs, installed, trace)
    wait: Wait | None = None
    while True:
        is_ours = lock.take(ALONE_SECONDS, gives_way=wait is None, unless=lambda: _is_node_served(installed))
        if not is_ours:
            if wait is None:
                return None
            wait.outcome = WaitOutcome.SHUTDOWN  # in place of another one: this process may not continue
        try:
            wait = next(steps)
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        finally:
            lock.free()
        wait.join()


def _forward_to_agent(inputs: CallInput, installed: InstallRecord) -> Reply | None:
    """Let the agent carry out the call, as for the executable. Return None if the agent ended before it received the call."""
    from svc.cni.agent_client import call
    from svc.cni.frame import FrameError, Handover

    variables = inputs.environment.items()
    environment = {name: text for name, text in variables if name.startswith("CNI_") or name == "TRACEPARENT"}
    forwarded = replace(inputs, environment=environment)
    with ExitStack() as stack:
        netns = -1
        with suppress(OSError):  # the agent reports the error
            netns = os.open(environment.get("CNI_NETNS", ""), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, netns)
        try:
            return call(str(installed.socket), forwarded, netns_fd=netns, timeout=AGENT_SECONDS)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except Handover as handover:
            return Reply(0, b"", b"", int(handover.continuation))
        except (OSError, FrameError) as failure:
            raise PeerError(
                f"the agent, which has just been started, did not answer: {failure}",
                details="repeat the call",
                code=Code.IO_FAILURE,
            ) from failure
