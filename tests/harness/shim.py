"""The native executable alone: an installation of it, and a small server in place of the agent."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from svc.cni.call_io import CallInput
from svc.cni.frame import RequestReader, pack_reply

ROOT = Path(__file__).parents[2]
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
NETCONF = b'{"cniVersion":"1.0.0","name":"net","type":"svc"}'
ATTACHMENT = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/proc/self/ns/net", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
NEEDED = {
    "ADD": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
    "DEL": ["CNI_CONTAINERID", "CNI_IFNAME"],
    "CHECK": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
    "GC": ["CNI_PATH"],
    "STATUS": [],
    "VERSION": [],
}
CALLS = [verb for verb in NEEDED if verb != "VERSION"]
TIMEOUT_SECONDS = 30.0  # until a test stops waiting for the executable

Result = subprocess.CompletedProcess[bytes]


# Build


def compile_shim(target: Path, *extra: str) -> Path:
    """Compile the executable with the command line of the build, and with musl if it is installed."""
    sanitizers = shlex.split(os.environ.get("SVC_SANITIZERS", ""))  # set by `make sanitize`; they need a dynamic executable
    compiler = (not sanitizers and shutil.which("musl-gcc")) or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    text = (ROOT / "CMakeLists.txt").read_text()
    recipe = re.search(r"COMMAND \$\{shim_cc\}(.*?)-o svc\b", text, re.DOTALL)
    links = re.search(r'set\(shim_links "(.*?)"\)', text)
    gcc_only = re.search(r'string\(APPEND shim_links "(.*?)"\)', text)
    if not (recipe and links and gcc_only):
        pytest.fail("CMakeLists.txt does not contain the command line of the build any more")
    command = recipe[1].replace("${shim_links}", links[1] + gcc_only[1]).replace("${SKBUILD_PROJECT_VERSION}", "1.2.3")
    flags = shlex.split(command)
    flags = [flag for flag in flags if flag not in ("-static", "-s")] + sanitizers if sanitizers else flags
    sources = [*sorted((ROOT / "_core").glob("shim_*.c")), ROOT / "_core/shim.c"]  # the build's order: the size depends on it
    subprocess.run([compiler, *flags, *extra, "-o", target, *sources], check=True)
    return target


@dataclass(frozen=True)
class Shim:
    """An installation: the executable and its record in one directory, and the agent's socket in another."""

    path: Path
    socket: Path

    def record(self, text: str, name: str = "svc", end: str = "\nend=record\n") -> None:
        (self.path.parent / f"{name}.install").write_text(text + end)

    def named(self, name: str) -> "Shim":
        link(self.path, self.path.with_name(name))
        return Shim(self.path.with_name(name), self.socket)

    def run(self, verb: str, stdin: bytes = NETCONF, **variables: str) -> Result:
        return self.run_with({"CNI_COMMAND": verb, **ATTACHMENT, **variables}, stdin)

    def run_with(self, environment: dict[str, str], stdin: bytes = NETCONF) -> Result:
        return subprocess.run(
            [self.path], env=environment, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )

    def run_in_shell(
        self, redirections: str, verb: str, stdin: IO[bytes] | int | None = None, stdout: IO[bytes] | int = subprocess.PIPE
    ) -> Result:
        """Run it in a shell with this standard input or standard output."""
        command = ["/bin/sh", "-c", f'exec "$0" {redirections}', str(self.path)]
        environment = {"CNI_COMMAND": verb, **ATTACHMENT}
        return subprocess.run(
            command, env=environment, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS, check=False
        )


def link(source: Path, target: Path) -> None:
    """Make a hard link, because a forked child could still have a copy open for writing: ETXTBSY."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def install(executable: Path, directory: Path) -> Shim:
    (directory / "bin").mkdir()
    link(executable, directory / "bin/svc")
    shim = Shim(directory / "bin/svc", directory / "agent.sock")
    shim.record(f"socket={shim.socket}\npython=/nonexistent/python3\n")
    return shim


# In place of the agent


@dataclass(frozen=True)
class Received:
    """A request, the device and inode of the descriptor that came with its first byte, and the process that sent it."""

    frame: CallInput
    descriptor: tuple[int, int] | None
    pid: int


@dataclass
class FakeAgent:
    """A server that handles each connection in a separate thread, by `handle`."""

    path: Path
    handle: Callable[["FakeAgent", socket.socket], None]
    received: list[Received] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> "FakeAgent":
        self._connections: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen(1024)
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        self._acceptor.join()
        self._socket.close()
        for connection in self._connections:
            connection.join()
        assert not self.failures

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._connections.append(threading.Thread(target=self._serve, args=[connection]))
                self._connections[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_SECONDS)
        with connection:
            try:
                self.handle(self, connection)
            except Exception as failure:
                self.failures.append(failure)

    def receive(self, connection: socket.socket) -> Received:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
        identity = None
        for descriptor in descriptors:
            status = os.fstat(descriptor)
            identity = status.st_dev, status.st_ino
            os.close(descriptor)
        reader = RequestReader()
        while (frame := reader.feed(data)) is None:
            data = connection.recv(1 << 16)
            assert data, "the request is incomplete"
        self.received.append(Received(frame, identity, int.from_bytes(credentials[:4], sys.byteorder)))
        return self.received[-1]


Handler = Callable[[FakeAgent, socket.socket], None]


def answering(status: int = 0, stdout: bytes = b"", stderr: bytes = b"", piece: int = 1 << 20) -> Handler:
    return sending(pack_reply(status, stdout, stderr), piece)


def sending(data: bytes, piece: int = 1 << 20) -> Handler:
    """Send the reply, and close the connection."""

    def handle(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        for start in range(0, len(data), piece):
            connection.sendall(data[start : start + piece])

    return handle


def hang(agent: FakeAgent, connection: socket.socket) -> None:
    """Keep the connection until the executable gives up."""
    agent.receive(connection)
    assert connection.recv(1) == b""


def error_of(result: Result) -> dict[str, Any]:
    """Return the only error object on stdout. Require that stderr is empty."""
    assert result.returncode == 1
    assert result.stderr == b""
    error = json.loads(result.stdout)
    assert list(error) == ["cniVersion", "code", "msg", "details"]
    assert error["msg"]
    assert error["details"]
    return dict(error)


def version_of(result: Result) -> str:
    assert result.returncode == 0
    assert result.stderr == b""
    answer = json.loads(result.stdout)
    assert answer["supportedVersions"] == VERSIONS
    assert list(answer) == ["cniVersion", "supportedVersions"]
    return str(answer["cniVersion"])


ONE_SHOT = """#!{python} -I
import json, os, sys
json.dump({{
    "arguments": sys.argv[1:],
    "environment": open("/proc/self/environ").read().split("\\0")[:-1],
    "stdin": sys.stdin.read(),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "pid": os.getpid(),
}}, sys.stdout)
sys.exit(7)
"""


def write_one_shot(path: Path) -> Path:
    path.write_text(ONE_SHOT.format(python=sys.executable))
    path.chmod(0o755)
    return path
