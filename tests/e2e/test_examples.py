"""The files of examples/. The tests change only servers, certificates, paths and the node name."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, remains
from harness.host_local import data_dir
from harness.netns import Netns
from harness.node import agent_with
from harness.pod import Pod
from harness.reference_plugins import REFERENCE, require_plugin
from harness.spec_rows import EVERYWHERE
from svc.attach import store_identity
from svc.names import DEFAULT

pytestmark = pytest.mark.root

EXAMPLES = Path(__file__).parents[2] / "examples"
LISTS = {"embedded": "embedded.conflist", "etcdv3": "etcd.conflist", "orch": "kubernetes.conflist"}
PLUGINS = ("portmap", "bandwidth", "host-local")
OF_SERVERS = ("etcd_", "orch")  # prefixes of fields for servers and their access
POD = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"

everywhere = pytest.mark.parametrize("site", EVERYWHERE, indirect=True, scope="module")
embedded = pytest.mark.parametrize("site", ["embedded"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def agent_program() -> tuple[str, ...]:
    """Return an agent that holds ADDs only briefly after a change of the datastore, because each test changes it."""
    return agent_with({f"{store_identity.__name__}.HOLD_SECONDS": 0.1})


@pytest.fixture
def empty_node(base_node: ClusterNode) -> Iterator[ClusterNode]:
    """Return a node in a new datastore, with the plugins that the network lists chain."""
    for plugin in PLUGINS:
        require_plugin(plugin)
        with suppress(FileExistsError):
            (base_node.bin_dir / plugin).symlink_to(REFERENCE / plugin)
    base_node.site.add_node(base_node.name)
    try:
        base_node.ctl("clusterinfo", "init")
        yield base_node
        assert remains([base_node]) == []
    finally:
        base_node.site.clear()


def listed(name: str, node: ClusterNode) -> dict[str, Any]:
    """Return an example of a network list, adapted to the servers and directories of the node."""
    found: dict[str, Any] = json.loads((EXAMPLES / name).read_text())
    plugin = found["plugins"][0]
    kept = {field: value for field, value in plugin.items() if not field.startswith(OF_SERVERS)}
    paths: dict[str, Any] = {"log_file_path": str(node.directory / "cni.log")} if "log_file_path" in kept else {}
    if kept["ipam"]["type"] == "host-local":
        paths["ipam"] = {**kept["ipam"], "dataDir": str(data_dir(node))}
    found["plugins"][0] = {**kept, **node.site.config, **paths, "nodename": node.name}
    return found


def install(node: ClusterNode, folder: Path, *options: str) -> dict[str, Any]:
    """Return the configuration of svc in the network list that `svcctl install` writes."""
    folders = ("--bin-dir", str(node.bin_dir), "--conf-dir", str(folder), "--socket", str(node.socket))
    node.svcctl("install", *folders, *options)
    written = json.loads((folder / DEFAULT.conflist).read_text())
    assert [plugin["type"] for plugin in written["plugins"]] == ["svc", "portmap", "bandwidth"]
    return {"cniVersion": written["cniVersion"], "name": written["name"], **written["plugins"][0]}


def attach(node: ClusterNode, sandbox: Netns, config: dict[str, Any], args: str = "") -> list[str]:
    """Return the addresses of a pod that was added, checked and deleted."""
    pod = Pod(node, sandbox, "c1", config, args=args)
    pod.add()
    assert pod.check().status == 0
    pod.delete()
    return pod.addresses


@everywhere
def test_network_list_works_with_the_example_pools(
    empty_node: ClusterNode, sandbox: Callable[[], Netns], tmp_path: Path
) -> None:
    """Each network list is tested on its datastore."""
    network = listed(LISTS[empty_node.site.config["datastore_type"]], empty_node)
    (tmp_path / "network.conflist").write_text(json.dumps(network))
    config = install(empty_node, tmp_path, "--netconf", str(tmp_path / "network.conflist"))
    empty_node.ctl("pool", "apply", "-f", str(EXAMPLES / "pools.yaml"))
    empty_node.ctl("reservation", "apply", "-f", str(EXAMPLES / "reservation.yaml"))
    empty_node.site.add_pod("web-0")
    v4, v6 = attach(empty_node, sandbox(), config, POD)
    assert v4.startswith("10.244.")
    assert v6.startswith("fd10:244::")


@embedded
def test_example_reservation_can_be_applied(empty_node: ClusterNode) -> None:
    """`svcctl reservation get` shows its ranges."""
    empty_node.ctl("reservation", "apply", "-f", str(EXAMPLES / "reservation.yaml"))
    shown = empty_node.ctl("reservation", "get").stdout.split()
    assert {"gateways", "10.244.0.0/28,fd10:244::/124"} <= set(shown)


@embedded
def test_host_local_list_works(empty_node: ClusterNode, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """The addresses are in the ranges of the example."""
    (tmp_path / "network.conflist").write_text(json.dumps(listed("host-local.conflist", empty_node)))
    config = install(empty_node, tmp_path, "--netconf", str(tmp_path / "network.conflist"))
    v4, v6 = attach(empty_node, sandbox(), config)
    assert v4.startswith("10.246.0.")
    assert v6.startswith("fd10:246::")


@embedded
def test_installation_resource_works(empty_node: ClusterNode, sandbox: Callable[[], Netns], tmp_path: Path) -> None:
    """svcctl applies its pools beside the other example pools, and the network waits for policy."""
    empty_node.ctl("pool", "apply", "-f", str(EXAMPLES / "pools.yaml"))
    config = install(empty_node, tmp_path, "--installation", str(EXAMPLES / "installation.yaml"), "--apply-pools")
    assert config["policy_setup_timeout_seconds"] == 30
    v4, v6 = attach(empty_node, sandbox(), {**config, "nodename": empty_node.name})
    assert v4.startswith("10.247.")
    assert v6.startswith("fd10:247::")
