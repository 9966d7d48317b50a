"""The DaemonSet's containers as processes: installer, agent and `install --watch`, with exactly the roles of the manifests."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.cluster_node import ClusterNode
from harness.controllers_rights import RightsProxy
from harness.datastores import EtcdSite, OrchSite, Site, session
from harness.kube import Kube
from harness.netns import Netns
from harness.node import pool_document
from harness.pod import Pod
from harness.pod_installer import SHORT_LOOKS, SHORT_TIMES, PodInstaller, end, memory, rights, user_of
from harness.polling import eventually, wait_until
from harness.reference_plugins import REFERENCE, require_plugin
from harness.stopped import stopped
from svc import __version__
from svc.admin.resources import CLUSTER
from svc.controllers.nodes import kube_name
from svc.deploy import rbac
from svc.deploy.manifests.settings import ETCD, NETWORKING, NONE, ORCH, Settings
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = [pytest.mark.server, pytest.mark.root]

POOL = "10.66.0.0/24"
NODE = ResourceKey("Node", "node1")


def settings_of(site: Site) -> Settings:
    if isinstance(site, EtcdSite):
        return Settings(NETWORKING, ETCD, "svc:1", crds=NONE, etcd_endpoints=str(site.config["etcd_endpoints"]))
    return Settings(NETWORKING, ORCH, "svc:1", crds=NONE, pools=[POOL])


@pytest.fixture
def proxy(kube: Kube) -> Iterator[RightsProxy]:
    with RightsProxy(kube) as made:
        yield made


@pytest.fixture
def node(site: Site, kube: Kube, orch_site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    """Return `node1` without an agent. Its etcd, and the API server, are reached from its network namespace."""
    sites = (site,) if isinstance(site, OrchSite) else (site, orch_site)
    with rights(kube, settings_of(site), tmp_path), ClusterNode(tmp_path / "node", "node1", *sites, agent=False) as made:
        orch_site.add_node("node1")  # the watch registers it in etcd
        for plugin in ("portmap", "bandwidth", "loopback"):
            require_plugin(plugin)
            (made.bin_dir / plugin).symlink_to(REFERENCE / plugin)
        yield made
    site.clear()
    orch_site.clear()


@pytest.fixture
def installer(site: Site, node: ClusterNode, kube: Kube) -> PodInstaller:
    made = PodInstaller(kube, settings_of(site), node.directory)
    made.netconf.write_text(made.netconf.read_text().replace("/var/log", str(node.directory)))
    return made


def stored(site: Site, key: ResourceKey) -> Resource | None:
    with session(site) as store:
        entry = store.find(key)
        return entry.value if entry else None


def noted(site: Site) -> Resource:
    return eventually(lambda: stored(site, CLUSTER), bool) or Resource("", {})


def test_containers_bring_a_node_into_a_fresh_cluster(
    site: Site, node: ClusterNode, installer: PodInstaller, kube: Kube, sandbox: Callable[[], Netns]
) -> None:
    """The init container installs, the agent starts, and the watch makes the datastore ready. Then an ADD works.

    It works as well with the token that was renewed since."""
    assert stored(site, CLUSTER) is None
    installer.run()
    assert user_of(kube, installer.token.text).endswith(":svc-cni-plugin")
    node.start_agent()
    with installer.watching() as process:
        installer.await_watch(process)
        spec = noted(site).spec
        assert spec["svcVersion"] == f"v{__version__}"
        assert spec["clusterType"] == ("k8s" if isinstance(site, EtcdSite) else "k8s,kdd")
        assert (spec["datastoreReady"], bool(re.fullmatch("[0-9a-f]{32}", spec["clusterGUID"]))) == (True, True)
        if isinstance(site, EtcdSite):
            node.ctl("pool", "apply", "-f", "-", stdin=pool_document("pool4", POOL))
            registered = eventually(lambda: stored(site, NODE), bool)
            assert registered is not None
            assert kube_name(DEFAULT, registered) == "node1"
        kube_pod(kube)
        pod = Pod(node, sandbox(), "c1", installer.entry(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
        pod.add()
        before = installer.token.text
        wait_until(lambda: installer.token.text != before)
        assert pod.check().status == 0
        pod.delete()
        assert installer.errors() == []
        assert end(process) == 0
    assert node.stop_agent() == 0


def kube_pod(kube: Kube) -> None:
    body = {
        "metadata": {"name": "web-0"},
        "spec": {"nodeName": "node1", "automountServiceAccountToken": False, "containers": [{"name": "c", "image": "x"}]},
    }
    kube.call("POST", "/api/v1/namespaces/default/pods", body)


def test_roles_of_the_installer_suffice_and_are_used(
    site: Site, node: ClusterNode, kube: Kube, proxy: RightsProxy, tmp_path: Path
) -> None:
    """Each right is used, and no request is refused. Under etcd only that for tokens is needed."""
    installer = PodInstaller(kube, settings_of(site), node.directory, proxy)
    installer.run()
    with installer.watching(SHORT_LOOKS) as process:
        installer.await_watch(process)
        noted(site)
        assert end(process) == 0
    with session(site) as store:  # an older version, which is replaced
        store.update(
            CLUSTER, lambda found: found and Resource(found.kind, found.metadata, found.spec | {"svcVersion": "v0.0.1"})
        )
    with installer.watching(SHORT_LOOKS) as process:
        installer.await_watch(process)
        wait_until(lambda: noted(site).spec["svcVersion"] == f"v{__version__}")
        assert end(process) == 0
    assert proxy.forbidden == []
    roles = [rbac.installer_token_role(DEFAULT, "kube-system")]
    roles += [rbac.installer_role(DEFAULT, DEFAULT.crd_api_version)] if isinstance(site, OrchSite) else []
    granted = {
        (rule["apiGroups"][0], rule["resources"][0], verb) for role in roles for rule in role["rules"] for verb in rule["verbs"]
    }
    assert {(right.group, right.resource, right.verb) for right in proxy.used} == granted


def test_newer_version_is_not_replaced_by_an_older_node(site: Site, node: ClusterNode, installer: PodInstaller) -> None:
    """During a rolling update nodes have different versions. Types of the cluster are added all the same."""
    with session(site) as store:
        fields = {"svcVersion": "v99.1.0-rc.1", "clusterType": "other", "datastoreReady": False, "clusterGUID": "a" * 32}
        store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": "u"}, fields))
    with installer.watching(SHORT_LOOKS) as process:
        installer.await_watch(process)
        found = eventually(lambda: noted(site), lambda found: "k8s" in found.spec["clusterType"])
        assert end(process) == 0
    assert found.spec["clusterType"].split(",")[:2] == ["other", "k8s"]
    assert {name: found.spec[name] for name in fields if name != "clusterType"} == {
        name: value for name, value in fields.items() if name != "clusterType"
    }


@pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")
def test_version_is_noted_when_the_right_is_granted(node: ClusterNode, installer: PodInstaller, kube: Kube, site: Site) -> None:
    """Until then the failure is reported once, with its remedy, and tokens are renewed."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/svc-install"
    role = kube.call("GET", path)
    kube.call("PUT", path, role | {"rules": []})
    kube.await_right(
        "system:serviceaccount:kube-system:svc-node",
        "crd.svc.internal",
        "clusterinformations",
        "create",
        allowed=False,
        namespace="",
    )
    with installer.watching(SHORT_TIMES) as process:
        installer.await_watch(process)
        kube.provoked.add("svc-node: get /apis/crd.svc.internal/v1/clusterinformations/default")
        (line,) = eventually(installer.errors, bool)
        assert 'cannot get resource "clusterinformations"' in line
        assert "grant it: `svcctl manifests` prints the ClusterRole svc-install" in line
        before = installer.token.text
        wait_until(lambda: installer.token.text != before)
        time.sleep(1.0)
        assert installer.errors() == [line]
        changed = kube.call("GET", path)
        kube.call("PUT", path, changed | {"rules": role["rules"]})
        wait_until(lambda: "the version is noted\n" in installer.out.read_text())
        assert end(process) == 0
    assert noted(site).spec["svcVersion"] == f"v{__version__}"


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True, scope="module")
def test_node_is_registered_when_the_datastore_is_unlocked(node: ClusterNode, installer: PodInstaller, site: Site) -> None:
    """Until then an administrator migrates it. The wait is reported once, and tokens are renewed."""

    def set_readiness(*, ready: bool) -> None:
        with session(site) as store:
            fields = {"svcVersion": "v99.0.0", "clusterType": "k8s", "datastoreReady": ready, "clusterGUID": "a" * 32}
            store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name, "uid": "u"}, fields))

    set_readiness(ready=False)
    with installer.watching(SHORT_TIMES) as process:
        installer.await_watch(process)
        assert eventually(installer.errors, bool) == [
            "node not registered: the datastore is locked for a migration: wait for its end"
        ]
        before = installer.token.text
        wait_until(lambda: installer.token.text != before)
        assert stored(site, NODE) is None
        set_readiness(ready=True)
        wait_until(lambda: stored(site, NODE) is not None)
        wait_until(lambda: installer.out.read_text().endswith("node node1 registered\nthe node is registered\n"))
        assert len(installer.errors()) == 1
        assert end(process) == 0


@pytest.mark.long
@pytest.mark.parametrize("site", ["etcdv3"], indirect=True, scope="module")
def test_five_minutes_without_etcd(node: ClusterNode, installer: PodInstaller, site: Site) -> None:
    """Tokens are renewed during that time. The node is registered afterwards."""
    assert isinstance(site, EtcdSite)
    process_of_etcd = site.running.members[0].process
    assert process_of_etcd is not None
    with installer.watching(SHORT_TIMES) as process:
        with stopped(process_of_etcd.pid):
            installer.await_watch(process)
            eventually(installer.errors, bool)
            before = memory(process)
            time.sleep(300.0)
            found = installer.token.text
            wait_until(lambda: installer.token.text != found)
            assert len(installer.errors()) <= 10
            assert memory(process) < before + 4.0
        wait_until(lambda: stored(site, NODE) is not None)
        assert end(process) == 0
