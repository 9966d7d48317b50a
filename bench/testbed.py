"""The environment of a phase of the benchmark: a node with its agent, sandboxes, and the competing plugins."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench import programs
from bench.idle_wait import wait_until_quiet
from bench.runtime import Call, Outcome, Runtime
from harness.frames import parse_reply
from harness.node import Node, netconf
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_request

IFNAME = "eth0"
VERSION = "1.0.0"  # the newest version that all competitors support
SANDBOX = f"/run/netns/svc-sandbox-{os.getpid()}"

_numbers = count(1)


@dataclass(slots=True)
class Pod:
    """A sandbox under /run/netns, and the result of its ADD while it is attached."""

    container: str
    netns: str
    result: Any = None
    args: str = ""


@dataclass(frozen=True)
class Plugin:
    """An executable that is called as the CNI specification says, with one network configuration."""

    name: str
    executable: Path
    netconf: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)

    def call(self, verb: str, pod: Pod | None = None) -> Call:
        """Return the call of a runtime: DEL and CHECK get the result of the ADD."""
        return Call(str(self.executable), self._environment(verb, pod), self._stdin(verb, pod))

    def direct(self, verb: str, socket: Path, pod: Pod | None = None) -> Call:
        """Return the same call without the executable: its packed frame, for the agent's socket."""
        inputs = CallInput(
            self.executable.name, self._environment(verb, pod), self._stdin(verb, pod), has_descriptor=pod is not None
        )
        return Call(str(socket), {}, pack_request(inputs), connects=True, netns=pod.netns if pod else "")

    def _environment(self, verb: str, pod: Pod | None) -> dict[str, str]:
        environment = {"CNI_COMMAND": verb, "CNI_PATH": str(self.executable.parent), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if pod is not None:
            environment |= {
                "CNI_CONTAINERID": pod.container,
                "CNI_NETNS": pod.netns,
                "CNI_IFNAME": IFNAME,
                "CNI_ARGS": pod.args,
            }
        return {**environment, **self.environment}

    def _stdin(self, verb: str, pod: Pod | None) -> bytes:
        previous = {"prevResult": pod.result} if pod is not None and verb in ("DEL", "CHECK") else {}
        return json.dumps({**self.netconf, **previous}).encode()


class Failed(Exception):
    """A call failed that should have succeeded."""


class Stage:
    """A node, its runtime, and everything that was made on it. Use it as `with Stage.open(...)`."""

    def __init__(self, node: Node, runtime: Runtime, directory: Path) -> None:
        self.node = node
        self.runtime = runtime
        self.directory = directory
        self._sandboxes: list[str] = []

    @staticmethod
    @contextmanager
    def open(node_type: type[Node] = Node) -> Iterator["Stage"]:
        """Open a stage on a quiet machine. At the end, remove everything, even after a failure."""
        wait_until_quiet()
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
            program = programs.build_runtime(directory)
            node = stack.enter_context(node_type(directory / "node"))
            node.apply_pools()
            runtime = stack.enter_context(Runtime(program, node.netns.path))
            stage = Stage(node, runtime, directory)
            stack.callback(stage.delete_sandboxes)
            yield stage

    def pods(self, number: int) -> list[Pod]:
        """Return new sandboxes. They stay until the end, because a teardown during the measurement would disturb it."""
        numbers = [next(_numbers) for _ in range(number)]
        pods = [Pod(f"{n:08x}" + 56 * "0", f"{SANDBOX}-{n}") for n in numbers]
        names = [Path(pod.netns).name for pod in pods]
        self._sandboxes += names
        _ip_batch([f"netns add {name}" for name in names])
        return pods

    def delete_sandboxes(self) -> None:
        _ip_batch([f"netns delete {name}" for name in self._sandboxes], force=True)
        self._sandboxes.clear()

    def svc_plugin(self, *, dual: bool = False, **changes: Any) -> Plugin:
        ipam = {"assign_ipv6": "true"} if dual else {}
        configuration = netconf(**{"cniVersion": VERSION, "ipam": ipam, **changes})
        return Plugin("svc, both families" if dual else "svc", self.node.bin_dir / "svc", configuration)

    def ptp(self) -> Plugin | None:
        """Return the plugin, or None if it is not installed."""
        if programs.require_ptp():
            return None
        return Plugin("ptp + host-local", programs.PTP, _ptp_netconf(self.directory / "host-local"))

    def execute(self, plugin: Plugin, verb: str, pod: Pod) -> Outcome:
        return self.execute_all(plugin, verb, [pod])[0]

    def execute_all(self, plugin: Plugin, verb: str, pods: Sequence[Pod], at_once: int = 1) -> list[Outcome]:
        """Execute the calls. Raise Failed if one fails. An ADD stores its result in the pod."""
        outcomes = self.runtime.run([plugin.call(verb, pod) for pod in pods], at_once)
        for pod, outcome in zip(pods, outcomes, strict=True):
            require_success(f"{plugin.name} {verb}", outcome)
            if verb == "ADD" and outcome.stdout.startswith(b"{"):
                pod.result = json.loads(outcome.stdout)
        return outcomes

    def connect(self, plugin: Plugin, verb: str, pod: Pod | None = None) -> Outcome:
        """Make the call without the executable."""
        outcome = self.runtime.one(plugin.direct(verb, self.node.socket, pod))
        reply = parse_reply(outcome.stdout)
        direct = Outcome(outcome.started, outcome.ended, reply.status, reply.stdout, reply.stderr)
        require_success(f"{verb} by the socket", direct)
        if verb == "ADD" and pod is not None:
            pod.result = json.loads(direct.stdout)
        return direct


def require_success(what: str, outcome: Outcome) -> None:
    if outcome.status:
        raise Failed(f"{what}: status {outcome.status}: {(outcome.stdout + outcome.stderr).decode(errors='replace')}")


def _ptp_netconf(data_dir: Path) -> dict[str, Any]:
    ipam = {
        "type": "host-local",
        "dataDir": str(data_dir),
        "ranges": [[{"subnet": "10.67.0.0/16"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": VERSION, "name": "ptp", "type": "ptp", "ipam": ipam}


def _ip_batch(commands: list[str], *, force: bool = False) -> None:
    command = ["ip", *(["-force"] if force else []), "-batch", "-"]
    text = "".join(f"{line}\n" for line in commands)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode and not force:
        raise Failed(f"{' '.join(command)}: {done.stderr}")
