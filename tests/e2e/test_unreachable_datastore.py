"""A datastore that is unreachable at a DEL, for any reason: the DEL succeeds, and the release is pending."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.certificates import Authority
from harness.cluster_node import IMPATIENT, ClusterNode, audit, remains
from harness.datastores import EtcdSite, OrchSite, Site, furnish
from harness.etcd import Cluster, ServerTls, cluster
from harness.netns import Netns
from harness.node import Node, netconf
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import pod_links
from harness.state import remains as left
from svc.attach.journal import Journal
from svc.datastore.api import Backend
from svc.datastore.etcd.store import EtcdStore
from svc.names import Names
from svc.netconf.names_profiles import load_profile

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
Json = dict[str, Any]

MISSING = "/nonexistent/file"
TLS = {"etcd_endpoints": "https://127.0.0.1:1", "etcd_ca_cert_file": MISSING}
UNREACHABLE: dict[str, Json] = {
    "certificate": {"datastore_type": "etcdv3", **TLS},
    "key": {"datastore_type": "etcdv3", **TLS, "etcd_cert_file": MISSING, "etcd_key_file": MISSING},
    "name of a server": {"datastore_type": "etcdv3", "etcd_endpoints": "http://no.such.host.invalid:2379"},
    "SRV record": {"datastore_type": "etcdv3", "etcd_discovery_srv": "no.such.host.invalid"},
    "server": {"datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"},
    "kubeconfig": {"datastore_type": "orch", "orch": {"kubeconfig": MISSING}},
    "no access at all": {"datastore_type": "orch"},
}


@pytest.fixture(scope="module")
def agent_program() -> tuple[str, ...]:
    return IMPATIENT


@pytest.fixture
def base_node(site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """A node for each test, because the tests stop its agent."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=IMPATIENT) as node:
        yield node


def require_nothing_pending(pod: Pod) -> None:
    """Require that the DEL of a container that was never attached says so, and logs no warning."""
    called = pod.call("DEL")
    assert called.status == 0, called
    assert f"nothing is known of net.{pod.container} on this node, and no release is pending" in called.stderr
    assert "WARNING" not in called.stderr


def states(node: Node) -> list[str]:
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        return [record.state for record in journal.all()]


def install(node: Node, profile: str, names: Names, cidr: str) -> None:
    node.prepare("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", profile)
    node.prepare("--names", profile, "clusterinfo", "init")
    pool = {"apiVersion": names.api_version, "kind": "IPPool", "metadata": {"name": "pool4"}, "spec": {"cidr": cidr}}
    node.prepare("--names", profile, "pool", "apply", "-f", "-", stdin=json.dumps(pool))


@pytest.mark.parametrize("config", UNREACHABLE.values(), ids=UNREACHABLE.keys())
def test_del_of_an_unattached_container_leaves_no_pending_release(pods: MakePod, shared_node: Node, config: Json) -> None:
    """Its ADD fails before it reaches the datastore."""
    pod = pods(args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", nodename="node1", **config)
    assert pod.failed("ADD").output["code"] in (7, 104)
    require_nothing_pending(pod)
    assert left(shared_node) == []


@pytest.mark.parametrize("outage", ["silent", "dead"])
def test_del_of_an_unattached_container_in_a_cluster_leaves_no_pending_release(
    cluster_node: ClusterNode, sandbox: Callable[[], Netns], outage: str
) -> None:
    node = cluster_node
    pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
    with node.silenced(node.site) if outage == "silent" else node.cut_off():
        require_nothing_pending(pod)
    assert states(node) == []


def test_del_with_a_damaged_store_leaves_a_pending_release(node: Node, sandbox: Callable[[], Netns]) -> None:
    """The release of an attached container is pending, and a container that was never attached has none."""
    pod = Pod(node, sandbox(), "c1", netconf())
    pod.add()
    node.stop_agent()
    store, whole = node.state_dir / "store.db", node.directory / "whole"
    store.rename(whole)
    store.write_bytes(b"damaged" * 1000)
    node.start_agent()
    require_nothing_pending(pod.copy(container="never"))
    log = pod.call("DEL").stderr
    assert "release of net.c1 is pending and will be retried" in log
    assert "svcctl store restore" in log
    assert states(node) == ["deleting"]
    node.stop_agent()
    whole.replace(store)
    node.start_agent()
    pod.delete()
    assert states(node) == []


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_release_waits_for_a_missing_names_profile(
    node: Node, sandbox: Callable[[], Netns], tmp_path: Path, agent: bool
) -> None:
    """The DEL deletes the interface. The DEL of a container that was never attached needs no profile."""
    file = tmp_path / "names.toml"
    text = 'plugin = "third"\nipam_plugin = "third-ipam"\nkey_root = "/third"\ninterface_prefix = "thi"\n'
    file.write_text(text)
    install(node, str(file), load_profile(str(file)), "10.68.0.0/16")
    config = netconf(type="third", ipam={"type": "third-ipam"})
    pod = Pod(node, sandbox(), "c1", config, plugin="third")
    pod.add()
    file.unlink()
    if not agent:
        node.stop_agent()
    pod.copy(container="c2").delete()
    pod.delete()
    assert pod.netns.links() == []
    assert states(node) == ["deleting"]
    file.write_text(text)
    pod.delete()
    assert states(node) == []
    if not agent:
        node.start_agent()


@pytest.mark.parametrize("site", ["orch"], indirect=True)
@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_release_waits_for_a_missing_kubeconfig(
    cluster_node: ClusterNode, orch_site: OrchSite, sandbox: Callable[[], Netns], tmp_path: Path, agent: bool
) -> None:
    """It may be missing during a rotation. The DEL deletes the interface at once."""
    kubeconfig = tmp_path / "kubeconfig"
    content = orch_site.kubeconfig.read_bytes()
    kubeconfig.write_bytes(content)
    orch_site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", orch={"kubeconfig": str(kubeconfig)})
    pod.add()
    cluster_node.stop_agent()
    kubeconfig.unlink()
    if agent:
        cluster_node.start_agent()
    pod.copy(container="fedcba9876543210").delete()
    pod.delete()
    assert pod_links(cluster_node) == {}
    assert states(cluster_node) == ["deleting"]
    kubeconfig.write_bytes(content)
    pod.delete()
    if not agent:
        cluster_node.start_agent()
    assert remains([cluster_node]) == []


@pytest.mark.parametrize("site", ["orch"], indirect=True)
def test_kubeconfig_that_is_gone_for_a_while(
    cluster_node: ClusterNode, orch_site: OrchSite, sandbox: Callable[[], Netns], tmp_path: Path
) -> None:
    """The agent goes on with its content, and says so once each time."""
    kubeconfig, away = tmp_path / "kubeconfig", tmp_path / "away"
    kubeconfig.write_bytes(orch_site.kubeconfig.read_bytes())
    orch_site.add_pod("web-0")
    pod = cluster_node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", orch={"kubeconfig": str(kubeconfig)})
    pod.add()
    said = f"going on with the credentials read before: kubeconfig {str(kubeconfig)!r} cannot be read"
    for times in (1, 2):
        kubeconfig.rename(away)
        for _ in range(3):
            assert pod.check().status == 0
            assert pod.copy().add() == pod.result
        assert cluster_node.log.read_text().count(said) == times
        away.rename(kubeconfig)
        assert pod.copy().add() == pod.result
    pod.delete()


BROKEN: dict[str, list[Json]] = {
    "etcdv3": [
        {"etcd_endpoints": ["http://127.0.0.1:1"]},
        {"etcd_endpoints": 2379},
        {"etcd_discovery_srv": 7},
        {"datastore_type": ["etcdv3"]},
    ],
    "orch": [
        {"datastore_type": 7},
        {"orch": {"kubeconfig": 7}},
        {"orch": {"kubeconfig": MISSING, "orch_api_root": ["https://127.0.0.1:1"]}},
    ],
}


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_location_that_cannot_be_read(web: Pod, cluster_node: ClusterNode, agent: bool) -> None:
    """The journal knows the datastore of an attachment. A DEL without a row is refused, because it must not ask another one."""
    if not agent:
        cluster_node.stop_agent()
    for broken in BROKEN[str(web.config["datastore_type"])]:
        web.add()
        web.delete(**broken)
        assert web.netns.links() == []
        assert remains([cluster_node]) == []
        for pod in (web, web.copy(container="fedcba9876543210")):
            error = pod.failed("DEL", **broken).output
            assert (error["code"], error["msg"].split(" = ")[0].split(".")[0]) == (
                7,
                f"invalid network configuration: {next(iter(broken))}",
            )
            assert "in quotes" in error["details"]
    if not agent:
        cluster_node.start_agent()


def test_gc_with_a_location_that_cannot_be_read(web: Pod, cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """It releases the unknown attachments that the journal knows. Then it fails, because it has not read the datastore."""
    cluster_node.site.add_pod("gone")
    gone = web.copy(container="fedcba9876543210", netns=sandbox(), args="K8S_POD_NAME=gone;K8S_POD_NAMESPACE=default")
    web.add()
    valid = {"cni.dev/valid-attachments": [{"containerID": web.container, "ifname": web.ifname}]}
    for broken in BROKEN[str(web.config["datastore_type"])]:
        gone.add()
        error = cluster_node.call("GC", web.config | broken | valid, container="", ifname="").output
        assert (error["code"], next(iter(broken)) in error["msg"]) == (7, True)
        assert (web.netns.links(), gone.netns.links()) == (["eth0"], [])
        assert set(audit([cluster_node]).allocations) == set(web.addresses)
    error = cluster_node.call("GC", web.config | broken | valid | {"mtu": "x"}, container="", ifname="").output
    assert (error["code"], "2 errors" in error["msg"]) == (7, True)
    web.delete()


class TlsSite(EtcdSite):
    """An etcd that requires client certificates."""

    def __init__(self, running: Cluster, authority: Authority) -> None:
        super().__init__(running)
        self.files = authority.issue("client")
        names = ("etcd_ca_cert_file", "etcd_cert_file", "etcd_key_file")
        self.config |= dict(zip(names, map(str, (authority.root, *self.files)), strict=True))

    def open(self) -> Backend:
        settings = {name: str(value) for name, value in self.config.items() if name.startswith("etcd_")}
        return EtcdStore({"kind": "etcdv3", **settings}, self.names)


@pytest.fixture
def tls_site(tmp_path: Path) -> Iterator[TlsSite]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    authority = Authority(folder, "ours")
    tls = ServerTls(*authority.issue("server", "127.0.0.1"), authority.root)
    with cluster(folder, tls=tls) as running:
        yield TlsSite(running, authority)


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "without an agent"])
def test_release_waits_for_a_missing_certificate(
    tls_site: TlsSite, sandbox: Callable[[], Netns], tmp_path: Path, agent: bool
) -> None:
    """Certificate and key are missing at the DEL. The agent retries the release when they are back."""
    furnish(tls_site, "node1")
    with ClusterNode(tmp_path / "node", "node1", tls_site) as node:
        pod = node.pod(sandbox())
        pod.add()
        node.stop_agent()
        kept = {file: file.read_bytes() for file in tls_site.files}
        for file in kept:
            file.unlink()
        if agent:
            node.start_agent()
        pod.delete()
        assert pod.netns.links() == []
        assert states(node) == ["deleting"]
        if agent:
            node.stop_agent()
        for file, content in kept.items():
            file.write_bytes(content)
        node.start_agent()
        wait_until(lambda: remains([node]) == [])
