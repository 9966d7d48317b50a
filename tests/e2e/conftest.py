"""Fixtures for end-to-end tests: nodes, pods and the datastores that they use."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from harness import forks
from harness.cluster_node import ClusterNode
from harness.cluster_node import remains as cluster_remains
from harness.datastores import Site, furnish
from harness.gate_server import GateServer, serving, status
from harness.host_local import data_dir, held, offer, section
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.service_fixtures import services
from harness.site_fixtures import etcd, etcd_site, home, orch_site, site
from harness.state import remains

__all__ = ["etcd", "etcd_site", "home", "orch_site", "services", "site"]

MakePod = Callable[..., Pod]

LOCAL_RANGE = "10.71.0.0/24"

LOG_LINES = 60  # of each agent, in the report of a failed test

_numbers = count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of the agents' logs to the report of a failed test."""
    report = yield
    for name, value in getattr(item, "funcargs", {}).items() if report.failed else ():
        if isinstance(value, Node) and value.log.exists():
            lines = value.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            report.sections.append((f"agent's log of {name}", "\n".join(lines)))
    return report


@pytest.fixture(scope="session", autouse=True)
def fork_servers(nothing_left_at_the_end: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start the servers that fork agents, svcctl and calls without an agent, before the checks of the first test."""
    with (
        forks.serving(forks.MODULES, forks.CLUSTER_MODULES, forks.CTL_MODULES),
        forks.carrying_out(tmp_path_factory.mktemp("one-shot")),
    ):
        yield


@pytest.fixture(scope="module")
def python_starts() -> Iterator[None]:
    """Let the executables of this module's nodes start Python for a call without an agent, as everywhere but in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "forks_calls", False)
        yield


@contextmanager
def _checked_node(directory: Path, agent_program: tuple[str, ...] = ()) -> Iterator[Node]:
    """Run a node with two pools. At the end its agent must exit with status 0 and must not have logged a traceback."""
    with Node(directory, agent_program=agent_program) as node:
        node.apply_pools()
        yield node
        _require_clean_end(node)


def _require_clean_end(node: Node) -> None:
    if node.has_agent:
        assert node.stop_agent() == 0
    log = node.log.read_text()
    assert "Traceback" not in log, log


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node for this test alone, with a pool of each family."""
    with _checked_node(tmp_path / "node") as node:
        yield node


@pytest.fixture(scope="module")
def agent_program() -> tuple[str, ...]:
    """Return the command that runs as the agent of the module's nodes. An empty one means svc-agent."""
    return ()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory, agent_program: tuple[str, ...]) -> Iterator[Node]:
    """Return a node for all tests of a module. The fixture `pods` checks that each test leaves it unchanged."""
    with _checked_node(tmp_path_factory.mktemp("node") / "node", agent_program) as node:
        yield node


@pytest.fixture
def sandbox() -> Iterator[Callable[[], Netns]]:
    """Return a function that makes network namespaces."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Netns("sandbox"))


@pytest.fixture
def pods(shared_node: Node, sandbox: Callable[[], Netns]) -> Iterator[MakePod]:
    """Return a function that makes pods on the shared node. At the end they are deleted, and must leave nothing.

    Keyword arguments that are not fields of a pod go to its network configuration.
    """
    factory = _Pods(shared_node, sandbox)
    yield factory
    for pod in factory.made:
        pod.call("DEL")
    assert remains(shared_node) == []


@pytest.fixture
def own_pods(node: Node, sandbox: Callable[[], Netns]) -> MakePod:
    """Return a function that makes pods on the test's own node. Nothing is checked, because the node is removed."""
    return _Pods(node, sandbox)


@pytest.fixture
def own_gate(node: Node) -> Iterator[GateServer]:
    """Start a readiness gate on the node of this test. It is not ready until the test changes it."""
    with serving(status(503), inside=node.netns) as server:
        yield server


class _Pods:
    def __init__(self, node: Node, sandbox: Callable[[], Netns]) -> None:
        self._node = node
        self._sandbox = sandbox
        self.made: list[Pod] = []

    def __call__(self, *, container: str = "", ifname: str = "eth0", args: str = "", plugin: str = "svc", **config: Any) -> Pod:
        container = container or f"container-{next(_numbers)}"
        self.made.append(Pod(self._node, self._sandbox(), container, netconf(**config), ifname, args, plugin))
        return self.made[-1]


# networks with addresses of host-local


@pytest.fixture(scope="module")
def local_node(shared_node: Node) -> Node:
    offer(shared_node)
    return shared_node


@pytest.fixture
def local(local_node: Node, pods: MakePod) -> Iterator[MakePod]:
    """Return a function that makes pods with addresses of these ranges. At the end no address may be left."""

    def make(*groups: Any, more: Any = None, **config: Any) -> Pod:
        return pods(**{"ipam": section(local_node, *(groups or (LOCAL_RANGE,)), **(more or {})), **config})

    yield make
    for pod in getattr(pods, "made", ()):
        pod.call("DEL")
    assert held(local_node) == {}
    rmtree(data_dir(local_node), ignore_errors=True)  # the next address depends on the last one that host-local assigned


@pytest.fixture
def own_local(node: Node, own_pods: MakePod) -> MakePod:
    """Return a function that makes pods with addresses of these ranges on the test's own node."""
    offer(node)
    return lambda *groups, **config: own_pods(**{"ipam": section(node, *(groups or (LOCAL_RANGE,))), **config})


# nodes on a shared datastore


@pytest.fixture(scope="module")
def further_sites() -> Sequence[Site]:
    """Return the datastores that the node reaches in addition to its own."""
    return ()


@pytest.fixture(scope="module")
def base_node(site: Site, further_sites: Sequence[Site], home: Path, agent_program: tuple[str, ...]) -> Iterator[ClusterNode]:
    """Return `node1` of the site, for all tests of a module."""
    with ClusterNode(home, "node1", site, *further_sites, agent_program=agent_program) as node:
        yield node
        _require_clean_end(node)


@pytest.fixture
def cluster_node(base_node: ClusterNode) -> Iterator[ClusterNode]:
    """Return `node1` with a datastore that is set up for this test. The test must leave nothing on the node."""
    furnish(base_node.site, "node1")
    try:
        yield base_node
        assert cluster_remains([base_node]) == []
    finally:
        base_node.site.clear()


@pytest.fixture
def web(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> Pod:
    """Return a pod with addresses of both families."""
    cluster_node.site.add_pod("web-0")
    return cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", ipam={"assign_ipv6": "true"})
