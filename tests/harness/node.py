"""A temporary node: a network namespace with an uplink, an installed executable, and its own agent."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from click.testing import CliRunner

from harness import forks
from harness.forks import Forked
from harness.netns import Netns, run
from svc.agent.stop_mark import remove_mark
from svc.ctl.main import main

START_SECONDS = 20.0
STOP_SECONDS = 30.0
BIN = Path(sys.executable).parent

UPLINK = """
link set lo up
link add uplink type bridge
link set uplink up
address add 192.0.2.1/24 dev uplink
address add 2001:db8::1/64 dev uplink nodad
route add default via 192.0.2.254
route add default via 2001:db8::fe
"""

POOL4 = "10.65.0.0/16"
POOL6 = "fd65::/112"


@dataclass(frozen=True)
class Called:
    """The result of an executed plugin:

    exit status, standard output (decoded, None if empty, and as text), and standard error.
    """

    status: int
    output: Any
    stderr: str
    stdout: bytes = b""


class Calling:
    """A running plugin. The caller waits for its result, or kills it."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        self._process = process
        self._outcome: Future[tuple[bytes, bytes]] = Future()
        self._thread = threading.Thread(target=self._communicate, args=(stdin,))
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> Called:
        self._thread.join()
        stdout, stderr = self._outcome.result()
        output = json.loads(stdout) if stdout else None
        return Called(self._process.returncode, output, stderr.decode(errors="replace"), stdout)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, as a runtime does at its timeout."""
        self._process.kill()
        self._thread.join()

    def _communicate(self, stdin: bytes) -> None:
        self._outcome.set_result(self._process.communicate(stdin))


class Node:
    """A node. `directory` contains its state, its socket and its executables; `netns` contains its interfaces."""

    forks_calls = True  # whether a server of forks, if one runs, carries out its calls without an agent, in place of Python
    programs = BIN  # the directory of its svcctl and svc-agent
    _agent_modules: tuple[str, ...] = forks.MODULES  # of the server that forks its agents

    def __init__(self, directory: Path, *, agent: bool = True, agent_program: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self._agent_program = agent_program
        self.state_dir, self.run_dir, self.bin_dir = (directory / name for name in ("state", "run", "bin"))
        self.socket = self.run_dir / "agent.sock"
        self.log = directory / "agent.log"
        self.netns = Netns("node")
        self.restarts = False  # whether a stopped agent is started again at once, and calls wait for it
        self._agent: subprocess.Popen[bytes] | Forked | None = None
        try:
            self._give_uplink()
            self._install()
            if agent:
                self.start_agent()
        except BaseException:
            self.close()
            raise

    def _give_uplink(self) -> None:
        """Make an uplink and a default route, as every real node has. Proxy ARP answers only for routed addresses."""
        run("ip", "-n", self.netns.name, "-batch", "-", stdin=UPLINK)

    def _install(self) -> None:
        self.prepare("install", "--bin-dir", str(self.bin_dir), "--socket", str(self.socket))
        for server in forks.one_shots if self.forks_calls else ():
            for record in self.bin_dir.glob("*.install"):
                record.write_text(record.read_text().replace(f"python={sys.executable}\n", f"python={server.python}\n"))

    def prepare(self, *arguments: str, stdin: str | None = None) -> None:
        """Run svcctl in this process, because there are hundreds of nodes, and a start of Python takes longer than the work."""
        done = CliRunner().invoke(main, [*self._directories, *arguments], input=stdin, catch_exceptions=False)
        if done.exit_code:
            raise RuntimeError(f"svcctl {' '.join(arguments)}: {done.output}")

    @property
    def _directories(self) -> tuple[str, ...]:
        return "--state-dir", str(self.state_dir), "--run-dir", str(self.run_dir)

    def svcctl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.programs / "svcctl"), *self._directories, *arguments]
        server = forks.servers.get(forks.CTL_MODULES) if self.programs == BIN else None
        if server is None:
            done = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
        else:
            done = server.run("import svc.ctl.main; raise SystemExit(svc.ctl.main.main())", command, stdin)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def apply_pool(self, name: str, cidr: str, **spec: object) -> None:
        self.prepare("pool", "apply", "-f", "-", stdin=pool_document(name, cidr, **spec))

    def apply_pools(self) -> None:
        """Create one pool of each family."""
        self.prepare("pool", "apply", "-f", "-", stdin=f"{pool_document('pool4', POOL4)}\n---\n{pool_document('pool6', POOL6)}")

    # the agent

    def start_agent(self, *program: str, options: tuple[str, ...] = (), recovered: bool = True, **environment: str) -> None:
        """Start the agent, and wait until it answers and has `recovered` interrupted calls.

        `program` replaces svc-agent, and `environment` is added to the test's own. Without both, the agent is forked if a
        server of forks runs.
        """
        logged = self.log.stat().st_size if self.log.exists() else 0
        program = program or self._agent_program
        arguments = ["run", "--state-dir", str(self.state_dir), "--run-dir", str(self.run_dir), *options]
        with self.log.open("ab") as log:
            self._agent = self._fork_agent(program, arguments, log.fileno(), environment)
            if self._agent is None:
                command = [*(program or [str(self.programs / "svc-agent")]), *arguments]
                self._agent = self.netns.begin(*command, stderr=log, env={**os.environ, **environment})
        deadline = time.monotonic() + START_SECONDS
        while not (self.is_answered() and (not recovered or b"recovery ended" in self.log.read_bytes()[logged:])):
            if self._agent.poll() is not None or time.monotonic() > deadline:
                self.kill_agent()
                raise RuntimeError(f"the agent did not start: {self.log.read_text()}")
            time.sleep(0.005)

    def _fork_agent(
        self, program: tuple[str, ...], arguments: Sequence[str], stderr: int, environment: Mapping[str, str]
    ) -> Forked | None:
        """Fork svc-agent or a program of `agent_with`. Return None if the agent differs in more, or without a server."""
        server = forks.servers.get(self._agent_modules)
        if server is None or environment or self.netns.has_files:
            return None
        match program:
            case [str(python), "-c", str(code)] if python == sys.executable:
                return server.start(code, ["-c", *arguments], (0, 1, stderr), self.netns.path)
            case [] if self.programs == BIN:
                return server.start(agent_with({})[-1], ["svc-agent", *arguments], (0, 1, stderr), self.netns.path)
        return None

    def is_answered(self) -> bool:
        """Return whether a process listens on the agent's socket; a killed agent leaves the file behind."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return connection.connect_ex(str(self.socket)) == 0

    @property
    def has_agent(self) -> bool:
        return self._agent is not None

    @property
    def agent_pid(self) -> int:
        assert self._agent is not None
        return self._agent.pid

    def stop_agent(self) -> int:
        """Ask the agent to end, and return its exit status."""
        os.kill(self.agent_pid, signal.SIGTERM)
        return self.wait_agent()

    def wait_agent(self) -> int:
        """Return the exit status of an agent that was asked to end."""
        assert self._agent is not None
        try:
            return self._agent.wait(STOP_SECONDS)
        finally:
            self.kill_agent()
            if not self.restarts:
                remove_mark(self.socket)

    def kill_agent(self) -> None:
        """Kill the agent, as the kernel does if memory runs out."""
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait(STOP_SECONDS)
        self._agent = None

    # calls

    def call(
        self, verb: str, netconf: Mapping[str, Any] | bytes, *, plugin: str = "svc", container: str = "c1", netns: str = "",
        ifname: str = "eth0", args: str = "", extra: Mapping[str, str] | None = None,
    ) -> Called:  # fmt: skip
        """Execute the plugin as a runtime does."""
        return self.begin(
            verb, netconf, plugin=plugin, container=container, netns=netns, ifname=ifname, args=args, extra=extra
        ).result()  # fmt: skip

    def begin(
        self, verb: str, netconf: Mapping[str, Any] | bytes, *, plugin: str = "svc", container: str = "c1", netns: str = "",
        ifname: str = "eth0", args: str = "", extra: Mapping[str, str] | None = None,
    ) -> "Calling":  # fmt: skip
        """Start the same call without waiting for it."""
        environment = {
            "CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": netns, "CNI_IFNAME": ifname, "CNI_ARGS": args,
            "CNI_PATH": str(self.bin_dir), "PATH": os.environ["PATH"],
        }  # fmt: skip
        process = self.netns.begin(
            str(self.bin_dir / plugin),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment, **(extra or {})},
        )  # fmt: skip
        return Calling(process, netconf if isinstance(netconf, bytes) else json.dumps(netconf).encode())

    def add(self, netconf: Mapping[str, Any], sandbox: Netns, **options: Any) -> Any:
        """Return the result of an ADD. Raise RuntimeError if it fails."""
        called = self.call("ADD", netconf, netns=sandbox.path, **options)
        if called.status:
            raise RuntimeError(f"ADD failed: {called.output} {called.stderr}")
        return called.output

    def delete(self, netconf: Mapping[str, Any], sandbox: Netns | None = None, **options: Any) -> None:
        called = self.call("DEL", netconf, netns=sandbox.path if sandbox else "", **options)
        if called.status:
            raise RuntimeError(f"DEL failed: {called.output} {called.stderr}")

    # the end

    def close(self) -> None:
        if self._agent is not None:
            self.stop_agent()
        self.netns.delete()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def agent_with(constants: Mapping[str, float]) -> tuple[str, ...]:
    """Return a program that runs svc-agent with these values of constants, each named as `svc.module.NAME`."""
    changes = [f"import {name.rpartition('.')[0]}; {name} = {value}" for name, value in constants.items()]
    return sys.executable, "-c", "\n".join(["import svc.agent.main", *changes, "raise SystemExit(svc.agent.main.main())"])


def pool_document(name: str, cidr: str, **spec: object) -> str:
    return json.dumps(
        {"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": name}, "spec": {"cidr": cidr, **spec}}
    )


def netconf(**changes: Any) -> dict[str, Any]:
    """Return a network configuration on the embedded store. `ipam` entries are merged into its ipam section."""
    ipam = {"type": "svc-ipam", **changes.pop("ipam", {})}
    return {"cniVersion": "1.1.0", "name": "net", "type": "svc", "datastore_type": "embedded", "ipam": ipam, **changes}
