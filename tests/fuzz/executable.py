"""The executable with mutated variables, standard input and answers of the agent.

An input has three parts: variables (each ended by a NUL), standard input, and the bytes that the agent sends. The executable
must end in time and without a signal, with the agent's reply or with an error object of its own.
"""

import json
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from fuzz.run import Target, WrongAcceptance
from harness.shim import ATTACHMENT, NETCONF, Shim, compile_shim, install
from svc.cni.call_io import Reply
from svc.cni.frame import FrameError, Handover, ReplyReader, RequestReader, pack_alive, pack_reply, pack_timeout_extension

PARTS: Final = b"\n--\n"
TIMEOUT_SECONDS: Final = 4.0
_SANITIZER_STATUS: Final = 86
_TOO_LONG: Final = pack_timeout_extension(3)[:-8] + b"\xff\xff\xff\xff" + bytes(4)
_WITH_RESULT: Final = (b"ADD", b"VERSION")  # verbs whose success has a result


@dataclass
class _Agent:
    """A server that reads each request, sends `reply`, and closes the connection."""

    path: Path
    reply: bytes = b""
    is_asked: bool = False
    failures: list[Exception] = field(default_factory=list)

    def start(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(self.path))
        listening.listen(16)
        threading.Thread(target=self._serve, args=(listening,), daemon=True).start()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(TIMEOUT_SECONDS)
                try:
                    self._answer(connection)
                except (FrameError, TimeoutError) as failure:
                    self.failures.append(failure)

    def _answer(self, connection: socket.socket) -> None:
        reader = RequestReader()
        while data := connection.recv(1 << 16):
            if reader.feed(data) is not None:
                self.is_asked = True
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(self.reply)
                return


@cache
def _installed() -> tuple[Shim, _Agent]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    shim = install(compile_shim(folder / "svc"), folder)
    agent = _Agent(shim.socket)
    agent.start()
    return shim, agent


def read(data: bytes) -> str:
    variables, stdin, answer, *_ = [*data.split(PARTS), b"", b""]
    reply = _reply(answer)
    if isinstance(reply, Handover):
        return "handover"  # the executable waits for the next agent, as long as the frame says
    shim, agent = _installed()
    agent.reply, agent.is_asked = answer, False
    agent.failures.clear()
    environment = _environment(variables)
    done = subprocess.run([shim.path], env=environment, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    if reply is not None and reply.status == 0 and not reply.stdout and environment.get(b"CNI_COMMAND") in _WITH_RESULT:
        reply = None  # the executable reports that the result is missing
    return _checked(done, reply, agent)


def _reply(answer: bytes) -> Reply | Handover | None:
    """Return the first reply in the bytes; None without a whole reply. The connection ends before what follows."""
    reader = ReplyReader()
    try:
        return next((reply for byte in answer if (reply := reader.feed(bytes([byte])))), None)
    except Handover as handover:
        return handover
    except FrameError:
        return None


def _environment(data: bytes) -> dict[bytes, bytes]:
    found = {b"ASAN_OPTIONS": f"detect_leaks=0:exitcode={_SANITIZER_STATUS}".encode()}
    for each in data.split(b"\0"):
        key, sign, value = each.partition(b"=")
        if key and sign and not key.startswith((b"ASAN", b"UBSAN", b"LD_")):
            found[key] = value
    return found


def _checked(done: subprocess.CompletedProcess[bytes], reply: Reply | None, agent: _Agent) -> str:
    if done.returncode < 0 or done.returncode == _SANITIZER_STATUS:
        raise WrongAcceptance(f"ended with {done.returncode}: {done.stderr.decode(errors='replace')[:2000]}")
    if agent.failures and "environment has the name" not in str(agent.failures[0]):  # not UTF-8: the agent refuses such a call
        raise WrongAcceptance(f"sent a wrong request: {agent.failures[0]}")
    if agent.is_asked and reply is not None:
        if (done.returncode, done.stdout, done.stderr) != (reply.status, reply.stdout, reply.stderr):
            raise WrongAcceptance(f"{done} is not {reply}")
        return f"reply {reply.status}"
    if done.returncode == 0 and b": CNI plugin, spec versions" in done.stderr:
        return "no call"  # CNI_COMMAND is not set
    answer = json.loads(done.stdout)
    if done.returncode == 0 and "supportedVersions" in answer:
        return "version"
    if done.returncode != 1 or not answer.get("msg") or not isinstance(answer.get("code"), int):
        raise WrongAcceptance(f"{done} is not an error")
    return f"error {answer['code']} {str(answer['msg'])[:20]}"


def _seed(verb: str, stdin: bytes, answer: bytes) -> bytes:
    variables = b"\0".join(f"{key}={value}".encode() for key, value in {"CNI_COMMAND": verb, **ATTACHMENT}.items())
    return PARTS.join((variables, stdin, answer))


TARGET: Final = Target(
    "executable",
    read,
    (),
    [
        _seed("ADD", NETCONF, pack_reply(0, b'{"cniVersion":"1.0.0"}', b"")),
        _seed("ADD", NETCONF, pack_reply(0, b"", b"a success without a result\n")),
        _seed("CHECK", NETCONF, _TOO_LONG + pack_reply(0, b"", b"")),
        _seed("DEL", NETCONF, pack_alive() + pack_reply(1, b'{"code":7}', b"a line\n")),
        _seed("CHECK", b"", pack_timeout_extension(3) + pack_reply(0, b"", b"")),
        _seed("VERSION", b'{"cniVersion":"0.4.0"}', b""),
        _seed("STATUS", NETCONF, b"SVC2"),
        _seed("GC", NETCONF, b""),
    ],
    [PARTS, b"\0", *(f"CNI_{name}=".encode() for name in ("COMMAND", "ARGS", "NETNS", "IFNAME", "PATH"))],
    _installed,
)
