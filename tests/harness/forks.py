"""Agents, svcctl and calls without an agent, forked from processes that have imported svc. See the servers beside this file."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness import fork_server, one_shot_server
from harness.leaks import adopts_orphans
from svc.ctl import commands

MODULES = ("svc.agent.main",)
_STORES = "svc.datastore.etcd.store", "svc.datastore.orch.store"
CLUSTER_MODULES = (*MODULES, *_STORES, "svc.orch.pods")
CTL_MODULES = (
    *_STORES,
    "yaml",
    "svc.ctl.completion",
    *(f"svc.ctl.commands.{path.stem}" for path in Path(commands.__path__[0]).glob("[a-z]*.py")),
    *("svc.admin.explain", "svc.admin.diagnostics", "svc.admin.node_status", "svc.admin.ipam_check.check"),  # imported late
)
ONE_SHOT_MODULES = ("svc.cni.__main__", "svc.cni.oneshot", *_STORES, "svc.orch.pods")
RUN_SECONDS = 120.0

servers: dict[tuple[str, ...], "ForkServer"] = {}  # by their modules


class Forked:
    """A process that this process has adopted, with the methods of `Popen` that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(ChildProcessError):  # the detection of leaks has ended it
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A process that has imported `modules`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-I", fork_server.__file__, *modules], stdin=theirs.fileno())

    def start(
        self, program: str, arguments: Sequence[str], files: tuple[int, int, int], netns: str = "/proc/thread-self/ns/net"
    ) -> Forked:
        """Run Python code in a new process with the environment of this one. `files` are its standard files."""
        order = {
            "program": program,
            "arguments": arguments,
            "directory": os.getcwd(),
            "umask": _umask(),
            "environment": dict(os.environ),
        }
        inside = os.open(netns, os.O_RDONLY)
        try:
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(order).encode()], [*files, inside])
                return Forked(int(self._socket.recv(20)))
        finally:
            os.close(inside)

    def run(self, program: str, arguments: Sequence[str], stdin: str | None) -> "subprocess.CompletedProcess[str]":
        """Run Python code, and return its output."""
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
            files[0].write(stdin or "")
            files[0].seek(0)
            here, out, err = (file.fileno() for file in files)
            process = self.start(program, arguments, (0 if stdin is None else here, out, err))
            status = process.wait(RUN_SECONDS)
            for file in files[1:]:
                file.seek(0)
            return subprocess.CompletedProcess(list(arguments), status, files[1].read(), files[2].read())

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class OneShotServer:
    """A process that carries out calls without an agent. The program `python` hands them over, in place of Python."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python3"
        path = folder / "one-shot.sock"
        source = Path(one_shot_server.__file__).with_name("one_shot.c")
        constants = {"SOCKET": path, "PYTHON": sys.executable}
        options = (f'-D{name}="{value}"' for name, value in constants.items())
        flags = "-static", "-Os", "-s", "-Wall", "-Werror"
        subprocess.run([shutil.which("musl-gcc") or "gcc", *flags, *options, "-o", self.python, source], check=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(64)
            command = [sys.executable, "-I", one_shot_server.__file__, *ONE_SHOT_MODULES]
            self._process = subprocess.Popen(command, stdin=listener.fileno())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


one_shots: list[OneShotServer] = []  # one, while it runs


@contextmanager
def carrying_out(folder: Path) -> Iterator[None]:
    """Run a server for calls without an agent inside the `with` block."""
    server = OneShotServer(folder)
    one_shots.append(server)
    try:
        yield
    finally:
        one_shots.clear()
        server.close()


@contextmanager
def serving(*kinds: tuple[str, ...]) -> Iterator[None]:
    """Run a server for each tuple of modules inside the `with` block, unless this process does not adopt orphans."""
    with ExitStack() as stack:
        for modules in kinds if adopts_orphans() else ():
            servers[modules] = ForkServer(modules)
            stack.callback(servers[modules].close)
        try:
            yield
        finally:
            servers.clear()


def _umask() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:")]
    return int(line.split()[1], 8)
