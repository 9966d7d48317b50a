"""A second runtime: podman, which calls CNI plugins itself, on a node with the embedded store."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness import podman
from harness.cgroups import ROOT
from harness.enter_netns import entered
from harness.node import Node
from harness.podman import Podman
from harness.polling import wait_until
from harness.reference_plugins import REFERENCE, require_plugin
from harness.state import audit, disagreements, pod_links, remains
from harness.traffic import neighbour
from harness.workloads import PAGE, PORT

pytestmark = pytest.mark.root

NETWORK = "pods"
HOST_PORT = 18081


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node that does not belong to a Kubernetes cluster."""
    with Node(tmp_path / "node") as node:
        node.apply_pools()
        yield node
        assert node.stop_agent() == 0
        assert "Traceback" not in node.log.read_text()


@pytest.fixture
def conf_dir(node: Node, tmp_path: Path) -> Path:
    require_plugin("portmap")
    (node.bin_dir / "portmap").symlink_to(REFERENCE / "portmap")
    entry = tmp_path / "entry.json"
    ipam = {"type": "svc-ipam", "assign_ipv6": "true"}
    entry.write_text(json.dumps({"type": "svc", "datastore_type": "embedded", "ipam": ipam}))
    folder = tmp_path / "net.d"
    node.svcctl(
        "install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--conf-dir", str(folder),
        "--netconf", str(entry), "--without", "bandwidth", "--cni-version", "0.4.0",
    )  # fmt: skip
    return folder


@pytest.fixture
def runtime(node: Node, conf_dir: Path, tmp_path: Path) -> Iterator[Podman]:
    with podman.running(tmp_path, node, conf_dir) as running:
        yield running


@pytest.fixture
def foreign_groups() -> Iterator[list[Path]]:
    """Paths for empty control groups of another program, at podman's usual place. The test creates them."""
    tops = [top for top in (ROOT, *ROOT.iterdir()) if (top / "cgroup.procs").exists()]
    parents = [parent for top in tops if not (parent := top / "libpod_parent").exists()]
    made = [top / "libpod_parent" / f"libpod-{uuid.uuid4().hex}" for top in tops]
    yield made
    for group in [*(group for group in made if group.exists()), *(parent for parent in parents if parent.exists())]:
        group.rmdir()


def test_control_groups_of_other_programs_are_kept(
    node: Node, conf_dir: Path, tmp_path: Path, foreign_groups: list[Path]
) -> None:
    """The harness removes only the groups of its own containers."""
    with podman.running(tmp_path, node, conf_dir) as runtime:
        runtime.run("one", NETWORK)
        own = list(ROOT.glob("**/svc-tests-*/libpod-*"))
        for group in foreign_groups:
            group.mkdir(parents=True)
    assert own
    assert not any(group.exists() for group in own)
    assert all(group.exists() for group in foreign_groups)


def test_containers_reach_each_other_and_leave_nothing(runtime: Podman, node: Node) -> None:
    for name in ("one", "two"):
        runtime.run(name, NETWORK)
    addresses = {runtime.address(name, NETWORK, kind) for name in ("one", "two") for kind in ("IPAddress", "GlobalIPv6Address")}
    assert addresses == audit(node).allocations.keys()
    assert len(addresses) == 4
    assert disagreements(node) == []
    for kind in ("IPAddress", "GlobalIPv6Address"):
        runtime("exec", "one", "ping", "-c", "1", "-w", "5", runtime.address("two", NETWORK, kind))
    runtime("rm", "--force", "--time", "0", "one")
    assert audit(node).allocations.keys() == {runtime.address("two", NETWORK, k) for k in ("IPAddress", "GlobalIPv6Address")}
    runtime("rm", "--force", "--time", "0", "two")
    assert remains(node) == []


def test_restarted_container_gets_a_new_interface(runtime: Podman, node: Node) -> None:
    runtime.run("one", NETWORK)
    (before,) = pod_links(node).values()
    runtime("restart", "--time", "0", "one")
    (after,) = pod_links(node).values()
    assert before != after
    assert {runtime.address("one", NETWORK), runtime.address("one", NETWORK, "GlobalIPv6Address")} == audit(
        node
    ).allocations.keys()
    assert disagreements(node) == []
    runtime("rm", "--force", "--time", "0", "one")
    assert remains(node) == []


def test_published_port_leads_to_container(runtime: Podman, node: Node) -> None:
    httpd = ("httpd", "-f", "-p", str(PORT), "-h", "/")
    runtime.run("web", NETWORK, "--publish", f"{HOST_PORT}:{PORT}", command=httpd)
    with neighbour(node.netns, "uplink", "192.0.2.50/24") as outside, entered(outside):
        wait_until(lambda: _page(f"http://192.0.2.1:{HOST_PORT}/") != "")  # the server starts after podman has answered
        assert _page(f"http://192.0.2.1:{HOST_PORT}/") == PAGE
    runtime("rm", "--force", "--time", "0", "web")
    assert remains(node) == []


def _page(url: str) -> str:
    """Return an empty text if no server answers."""
    with suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as page:
        return str(page.read().decode())
    return ""
