"""The agent runs out of descriptors or threads: errors name the limit, and later calls succeed."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.cluster_node import remains as cluster_remains
from harness.datastores import Site, furnish
from harness.netns import Netns
from harness.node import BIN, Node
from harness.pod import Pod
from harness.state import remains

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
CALLS = 12
LIMIT = "the agent has too many files open: raise its limit (LimitNOFILE)"


@contextmanager
def few_descriptors(node: Node, spare: int) -> Iterator[None]:
    """Limit the agent to `spare` more open files than now, during the block. The limit is for the number of a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{node.agent_pid}/fd")))
    soft = next(islice((number for number in count() if number not in used), spare, None))
    limits = resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.prlimit(node.agent_pid, resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def fresh_node(etcd_site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node on etcd, which its agent does not know yet."""
    furnish(etcd_site, "node1")
    try:
        with ClusterNode(tmp_path / "node", "node1", etcd_site, agent=False) as node:
            (node.state_dir / "installed.json").unlink(missing_ok=True)
            node.start_agent(str(BIN / "svc-agent"))
            yield node
    finally:
        etcd_site.clear()


@pytest.mark.parametrize("spare", [6, 40])
def test_agent_recovers_from_a_first_use_of_etcd_without_descriptors(
    fresh_node: ClusterNode, sandbox: Callable[[], Netns], spare: int
) -> None:
    """Each call succeeds or names the limit. Later calls succeed, because the agent repeats an interrupted import."""
    pods = [fresh_node.pod(sandbox(), f"container-{number}") for number in range(CALLS)]
    with few_descriptors(fresh_node, spare), ThreadPoolExecutor(CALLS) as callers:
        answers = list(callers.map(lambda pod: pod.call("ADD"), pods))
    errors = {(each.output["code"], each.output["details"].partition(" [")[0]) for each in answers if each.status}
    assert errors <= {(106, LIMIT)}
    for pod in pods:
        pod.copy().add()
        pod.delete()
    assert cluster_remains([fresh_node]) == []


def test_call_and_status_without_descriptors_name_the_limit(own_pods: MakePod, node: Node) -> None:
    """The errors do not blame the sandbox or the files."""
    pod = own_pods()
    with few_descriptors(node, 2):
        added, asked = pod.call("ADD"), pod.call("STATUS")
    assert (added.output["code"], added.output["details"].partition(" [")[0]) == (106, LIMIT)
    assert (asked.output["code"], asked.output["details"].partition(" [")[0]) == (50, LIMIT)
    pod.add()
    pod.delete()
    assert remains(node) == []


def test_del_without_descriptors_needs_the_row_of_the_attachment(own_pods: MakePod, node: Node) -> None:
    """Without a row the agent would have to open the sandbox, to see whether it has an interface."""
    known, unknown = own_pods(), own_pods()
    known.add()
    with few_descriptors(node, 3):  # for the connection and the kernel, and not for the sandbox
        known.delete()
        assert unknown.failed("DEL").output["code"] == 106
    unknown.delete()
    assert remains(node) == []


def start(node: Node, *limits: str) -> str:
    """Start an agent that must fail, and return its error output."""
    options = ["run", "--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir)]
    command = ["ip", "netns", "exec", node.netns.name, "prlimit", *limits, str(BIN / "svc-agent"), *options]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=30)
    assert done.returncode == 1
    return done.stderr


def test_agent_without_descriptors_names_the_limit(node: Node) -> None:
    node.stop_agent()
    assert LIMIT in start(node, "--nofile=16").splitlines()[-1]


def test_agent_without_threads_names_the_limits(node: Node) -> None:
    """The error is one line. Here the stack of a thread exceeds the memory limit of the agent."""
    node.stop_agent()
    output = start(node, f"--as={4 << 30}", f"--stack={16 << 30}")
    assert "cannot run: the system gives no further thread: raise the limits of the agent (TasksMax" in output.splitlines()[-1]
    assert "Traceback" not in output
