"""An upgrade in place: the package is replaced while the agent runs, which continues with its imported modules."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import svc
from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, furnish
from harness.gate_pods import LONG
from harness.gate_server import serving, status
from harness.host_local import offer, section
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.polling import wait_until
from svc._core import netns
from svc.netconf.installed import Installed, add_installed

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
METRICS = "127.0.0.1:9405"
DISTRIBUTION = svc.__distribution__.replace("-", "_")

# It runs without the hooks of site-packages, which would find the package in the source tree.
PROGRAM = """
import sys
sys.path[:0] = sys.argv.pop(1).split(":")
import svc.agent.server, svc.agent.main
svc.agent.server.CHECK_SECONDS = 0.2
sys.exit(svc.agent.main.main())
"""


def copy_package(target: Path, version: str) -> None:
    """Copy the package with its compiled modules, as an installation has it."""
    shutil.copytree(Path(svc.__file__).parent, target / "svc", ignore=shutil.ignore_patterns("__pycache__"))
    for module in Path(str(netns.__file__)).parent.glob("*.so"):
        shutil.copy(module, target / "svc" / "_core")
    metadata = target / f"{DISTRIBUTION}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {svc.__distribution__}\nVersion: {version}\n")


def record(node: Node, *configs: dict[str, object]) -> None:
    """Record the network as `svcctl install` does."""
    for number, config in enumerate(configs):
        path = node.directory / f"{number}.conflist"
        path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [config]}))
        add_installed(node.state_dir, Installed("", str(node.bin_dir / str(number)), (), str(path)))


def start(node: Node, folder: Path, *options: str) -> None:
    """Start the copy's agent in place of the node's own."""
    if node.has_agent:
        node.stop_agent()
    site, started = Path(pytest.__file__).parents[1], node.log.read_text().count("serving on") if node.log.exists() else 0
    copy_package(folder, "1.0.0")
    node.start_agent(sys.executable, "-S", "-c", PROGRAM, f"{folder}:{site}", options=options)
    wait_until(lambda: node.log.read_text().count("serving on") > started)


def test_running_agent_does_not_need_its_package(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    """The ADDs use a readiness gate, host-local, the wait for policy and a log file."""
    record(node, netconf())
    start(node, tmp_path)
    (tmp_path / "svc").rename(tmp_path / "gone")
    log = node.directory / "cni.log"
    offer(node)
    delegated = own_pods(ipam=section(node, "10.66.0.0/24"))
    with serving(status(200), inside=node.netns) as gate:
        gated = own_pods(readiness_gates=[gate.url], log_file_path=str(log), policy_setup_timeout_seconds=1, **LONG)
        gated.add()
        assert gated.call("ADD").status == 0
    delegated.add()
    for pod in (delegated, gated):
        pod.delete()


def test_agent_imports_the_datastore_of_an_installed_network_at_its_start(
    tmp_path: Path, etcd_site: EtcdSite, sandbox: Callable[[], Netns]
) -> None:
    """This includes gRPC and the modules that use it."""
    with ClusterNode(tmp_path / "node", "node1", etcd_site, agent=False) as node:
        furnish(etcd_site, "node1")
        try:
            record(node, node.netconf())
            start(node, tmp_path)
            (tmp_path / "svc").rename(tmp_path / "gone")
            pod = node.pod(sandbox())
            pod.add()
            pod.delete()
        finally:
            etcd_site.clear()


def counted(node: Node) -> list[str]:
    """Return the samples of the metric, as the agent serves them."""
    script = f"import urllib.request as r; print(r.urlopen('http://{METRICS}/metrics').read().decode())"
    lines = node.netns.run(sys.executable, "-c", script).stdout.splitlines()
    return [line for line in lines if line.startswith("svc_package_changes_total ")]


def test_other_version_on_the_disk_is_reported(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    """The log, STATUS and the metrics report it until the agent is restarted."""
    start(node, tmp_path, "--metrics", METRICS)
    assert counted(node) == ["svc_package_changes_total 0"]
    pod = own_pods()
    pod.add()
    (tmp_path / "svc").rename(tmp_path / "old")
    shutil.rmtree(tmp_path / f"{DISTRIBUTION}-1.0.0.dist-info")
    copy_package(tmp_path, "2.0.0")
    expected = "the agent runs version 1.0.0, and version 2.0.0 has been installed since: restart svc-agent"
    wait_until(lambda: expected in node.log.read_text())
    (line,) = counted(node)
    assert int(line.split()[-1]) in (1, 2)  # twice if it looked while the package was being replaced
    wait_until(lambda: node.call("STATUS", netconf()).status == 0)  # it may lack the time on a busy machine
    assert expected in node.call("STATUS", netconf()).stderr
    node.stop_agent()
    node.start_agent()
    assert expected not in node.call("STATUS", netconf()).stderr
    pod.delete()


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
@pytest.mark.parametrize("datastore", ["etcdv3", "orch"])
def test_error_of_a_failed_import_recommends_a_restart(
    own_pods: MakePod, node: Node, tmp_path: Path, datastore: str, is_replaced: bool
) -> None:
    """No network of this datastore is recorded, so that the agent has not imported it at its start."""
    start(node, tmp_path)
    (tmp_path / "svc").rename(tmp_path / "gone")
    if is_replaced:
        copy_package(tmp_path, "2.0.0")
        (tmp_path / "svc" / "datastore" / {"etcdv3": "etcd", "orch": "orch"}[datastore] / "store.py").write_text(
            "import svc.new"
        )
    access = {"etcd_endpoints": "http://127.0.0.1:1", "orch": {"orch_api_root": "http://127.0.0.1:1"}}
    called = own_pods(datastore_type=datastore, **access).call("ADD")
    assert (called.status, called.output["code"]) == (1, 100)
    assert "since its agent started: restart svc-agent" in called.output["details"]
    assert "Traceback" not in called.stderr + node.log.read_text()
