"""svcctl on an installed node uses the datastore of the node's network."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import Site, session
from harness.ipam import put_pool
from harness.node import Node
from svc.admin import pools
from svc.attach.datastore_ready import KEY as READY
from svc.model.resource import Resource
from svc.names import DEFAULT


def install(node: Node, folder: Path, config: dict[str, object], *options: str) -> Path:
    """Install the network list of a node, without chained plugins."""
    entry, conf_dir = folder / "entry.json", folder / "net.d"
    entry.write_text(json.dumps(config))
    node.prepare(
        "install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--conf-dir", str(conf_dir),
        "--netconf", str(entry), "--without", "portmap", "--without", "bandwidth", *options,
    )  # fmt: skip
    return conf_dir / "10-svc.conflist"


@pytest.fixture
def installed(cluster_node: ClusterNode, tmp_path: Path) -> Iterator[Path]:
    config = cluster_node.netconf(**cluster_node.site.administration)
    yield install(cluster_node, tmp_path, config)
    cluster_node.prepare("uninstall", "--bin-dir", str(cluster_node.bin_dir))
    cluster_node.prepare("install", "--bin-dir", str(cluster_node.bin_dir), "--socket", str(cluster_node.socket))


def is_ready(site: Site) -> object:
    with session(site) as store:
        info = store.get(READY).value
    assert isinstance(info, Resource)
    return info.spec["datastoreReady"]


def test_lock_reaches_the_datastore_of_the_network(cluster_node: ClusterNode, installed: Path) -> None:
    """svcctl needs no option for this. Its output names the datastore, and it creates no local file."""
    printed = cluster_node.svcctl("clusterinfo", "lock").stdout
    assert is_ready(cluster_node.site) is False
    servers = {"etcdv3": "etcd http://127.0.0.1:", "orch": "Kubernetes API of kubeconfig "}
    assert printed.startswith(f"locked\ndatastore: {servers[cluster_node.site.config['datastore_type']]}")
    assert printed.endswith(f", from {installed}\n")
    assert cluster_node.svcctl("clusterinfo", "unlock").stdout.startswith("unlocked\n")
    assert not (cluster_node.state_dir / "store.db").exists()


def test_pools_of_the_operator_are_applied(cluster_node: ClusterNode, tmp_path: Path) -> None:
    """svcctl writes them to the datastore of the installed network, and deletes pools that are no longer listed."""
    head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
    resource = ("--installation", str(tmp_path / "installation.json"), "--apply-pools")

    def pools_of(*listed: object) -> list[str]:
        network = {"ipPools": listed}
        (tmp_path / "installation.json").write_text(json.dumps(head | {"spec": {DEFAULT.operator_network: network}}))
        install(cluster_node, tmp_path, cluster_node.netconf(**cluster_node.site.administration), *resource)
        return [pool["metadata"]["name"] for pool in json.loads(cluster_node.svcctl("pool", "get", "-o", "json").stdout)]

    others = pools_of()
    for _ in range(2):
        assert {*pools_of({"cidr": "10.97.0.0/16", "encapsulation": "None"})} == {*others, "default-ipv4-ippool"}
    assert pools_of() == others
    assert not (cluster_node.state_dir / "store.db").exists()
    cluster_node.prepare("uninstall", "--bin-dir", str(cluster_node.bin_dir))
    cluster_node.prepare("install", "--bin-dir", str(cluster_node.bin_dir), "--socket", str(cluster_node.socket))


def test_refused_pool_installs_nothing(cluster_node: ClusterNode, tmp_path: Path) -> None:
    """Otherwise a runtime would start with a network that lacks its pools."""
    with session(cluster_node.site) as store:
        put_pool(store, "user", "10.98.0.0/16")
        head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
        network = {"ipPools": [{"name": "user", "cidr": "10.98.0.0/16", "encapsulation": "None"}]}
        resource = tmp_path / "installation.json"
        resource.write_text(json.dumps(head | {"spec": {DEFAULT.operator_network: network}}))
        (tmp_path / "entry.json").write_text(json.dumps(cluster_node.netconf(**cluster_node.site.administration)))
        done = cluster_node.svcctl(
            "install", "--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "net.d"), "--without", "portmap",
            "--without", "bandwidth", "--netconf", str(tmp_path / "entry.json"), "--installation", str(resource),
            "--apply-pools", check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, ""), done
        assert "nothing was changed: IP pool 'user': spec.natOutgoing is not set but listed as true" in done.stderr
        assert {path.name for path in tmp_path.iterdir()} == {"installation.json", "entry.json"}
        pools.delete(store, "user")


def test_unreadable_network_list_is_an_error(cluster_node: ClusterNode, installed: Path) -> None:
    """svcctl does not use the embedded store instead."""
    installed.rename(installed.with_suffix(".moved"))
    done = cluster_node.svcctl("clusterinfo", "lock", check=False)
    assert done.returncode == 1
    assert f"{str(installed)!r} cannot be read" in done.stderr
    assert is_ready(cluster_node.site) is True
    assert not (cluster_node.state_dir / "store.db").exists()
    installed.with_suffix(".moved").rename(installed)


def test_missing_state_directory_is_an_error(node: Node, tmp_path: Path) -> None:
    """The error names the fix, and svcctl creates no file."""
    wrong = tmp_path / "wrong"
    for arguments in (("pool", "get"), ("clusterinfo", "lock"), ("ipam", "show")):
        done = node.svcctl("--state-dir", str(wrong), *arguments, check=False)
        assert done.returncode == 1
        assert f"{wrong}/store.db does not exist: name the agent's directory with --state-dir" in done.stderr
    assert not wrong.exists()


def test_output_names_the_file_of_the_embedded_store(node: Node, tmp_path: Path) -> None:
    """This works while the agent has the file open."""
    path = install(node, tmp_path, {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}})
    printed = node.svcctl("clusterinfo", "lock").stdout
    assert printed == f"locked\ndatastore: embedded store {node.state_dir}/store.db, from {path}\n"
    node.svcctl("clusterinfo", "unlock")
