"""Section 2.9, the precedence of section 3, and the rules about pools."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.controllers import Cluster, cluster, variables_of
from harness.datastores import EtcdSite, OrchSite, Site, session
from harness.ipam import put, put_pool
from harness.node import POOL4
from harness.orch import PODS
from harness.pod import Pod, refused
from harness.polling import wait_until
from harness.running_controller import running
from harness.spec_rows import statement
from svc.controllers.configuration import Configuration
from svc.controllers.node.host_endpoint_controller import HostEndpoints
from svc.controllers.settings import ACCOUNT, NAMESPACE, POLICY, WORKLOAD
from svc.datastore.api import Backend, Delete
from svc.datastore.open import open_client
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
BLUE = "10.71.0.0/24"
COPIED = (POLICY, NAMESPACE, ACCOUNT, WORKLOAD)  # the controllers whose objects etcd has as copies
EMBEDDED = pytest.mark.parametrize(
    "site", ["embedded"], indirect=True, scope="module"
)  # the tests run svcctl repeatedly, which is slow


def apply(node: ClusterNode, name: str, cidr: str, *, check: bool = True, **spec: Any) -> str:
    """Apply the document with svcctl and return its output."""
    pool = {"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": name}, "spec": {"cidr": cidr, **spec}}
    done = node.ctl("pool", "apply", "-f", "-", stdin=json.dumps(pool), check=check)
    return done.stdout + done.stderr


def stored(node: ClusterNode, name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = json.loads(node.ctl("pool", "get", name, "-o", "json").stdout)
    return found


@EMBEDDED
@statement(
    "2.9",
    "IPPool metadata.name",
    "A pool is known by its name.",
    "Network configurations and annotations use it. `svcctl pool apply` refuses a name that is not valid for an object.",
)
@statement("2.9", "IPPool spec.cidr", "The range of the pool's addresses.", "It has canonical form, and pools do not overlap.")
def test_pool_is_a_named_range(make: MakePod, cluster_node: ClusterNode) -> None:
    apply(cluster_node, "blue", BLUE)
    found = stored(cluster_node, "blue")
    assert (found["metadata"]["name"], found["spec"]["cidr"]) == ("blue", BLUE)
    pod = make(ipam={"ipv4_pools": ["blue"]})
    pod.add()
    assert pod.addresses[0].startswith("10.71.0.")
    output = apply(cluster_node, "Red!", "10.71.0.128/25", check=False)
    assert ("overlap" in output, "metadata.name" in output) == (True, True)


@EMBEDDED
@statement(
    "2.9",
    "IPPool spec.ipipMode",
    "Whether traffic between nodes goes through an IP-in-IP tunnel: `Always`, `CrossSubnet` or `Never`, which is the default.",
    "Checked and stored for the program that routes between nodes, and read as R5 says. svc makes no tunnels.",
)
@statement(
    "2.9",
    "IPPool spec.natOutgoing",
    "Whether traffic that leaves the pools gets the node's address.",
    "Checked and stored for the program that does it. svc does not translate addresses.",
    choice="The fields of a pool that the specification does not show (`vxlanMode`, `blockSize`, `namespaceSelector`,"
    " `disabled`, `disableBGPExport`, `allowedUses`, `assignmentMode`) are those of existing deployments that svc takes over.",
)
def test_pool_keeps_the_fields_for_other_programs(make: MakePod, cluster_node: ClusterNode) -> None:
    apply(cluster_node, "blue", BLUE, ipipMode="Always", natOutgoing=True)
    spec = stored(cluster_node, "blue")["spec"]
    assert (spec["ipipMode"], spec["natOutgoing"]) == ("Always", True)
    make(ipam={"ipv4_pools": ["blue"]}).add()
    output = apply(
        cluster_node, "red", "10.72.0.0/24", ipipMode="Sometimes", nodeSelector="rack ==", natOutgoing=1, check=False
    )
    assert all(name in output for name in ("ipipMode", "nodeSelector", "natOutgoing"))


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True, scope="module")
@statement(
    "2.9",
    "host endpoints",
    "Automatic ones have the label `created-by` with the controllers' name, and their names end in `-auto-hep`.",
    "Controller `node` of `svc-controllers` keeps one for each node, `NODE-auto-hep` with the labels of the node, and those of "
    "templates. It reverts edits. Switched off, it deletes all with the label, and no other. The plugin never changes one.",
    choice="They are off unless `spec.controllers.node.hostEndpoint.autoCreate` is `Enabled`. A host endpoint of the same name "
    "without the label is left alone and reported.",
)
def test_automatic_host_endpoints(make: MakePod, site: Site, orch_site: OrchSite) -> None:
    pod = make()
    key, own = ResourceKey("HostEndpoint", "node1-auto-hep"), ResourceKey("HostEndpoint", "own-auto-hep")
    with (
        session(site) as store,
        session(site) as controllers,
        closing(open_client({"kubeconfig": str(orch_site.administrator)})) as client,
        running(client, controllers, HostEndpoints, configuration=Configuration(creates_host_endpoints=True)) as part,
    ):
        put(store, own, Resource(own.kind, {"name": own.name}, {"node": "node1", "interfaceName": "eth9"}))
        wait_until(lambda: store.find(key) is not None)
        made = store.get(key)
        labels = store.get(ResourceKey("Node", "node1")).value.labels
        assert made.value.labels == {**labels, f"{DEFAULT.label_prefix}/created-by": DEFAULT.controllers}
        assert (made.value.spec["node"], made.value.spec["interfaceName"]) == ("node1", "*")
        assert made.value.spec["profiles"] == [DEFAULT.default_allow_profile]
        pod.add()
        pod.delete()
        no_attachments: dict[str, Any] = {"cni.dev/valid-attachments": []}
        assert pod.call("GC", **no_attachments).status == 0
        assert store.get(key) == made
        store.update(key, lambda found: found and replace(found, spec={**found.spec, "profiles": []}))
        wait_until(lambda: store.get(key).value.spec == made.value.spec)
        part.live.replace(Configuration())
        wait_until(lambda: [each.key for each in store.list(ResourceQuery(key.kind))] == [own])
        store.write([Delete(own)])


@statement(
    "2.9",
    "IPPool spec.nodeSelector",
    "An expression on the labels of nodes; without it every node is selected.",
    "`==`, `!=`, `in`, `not in`, `contains`, `starts with`, `ends with`, `has()`, `all()`, `!`, `&&`, `||`, parentheses.",
)
@statement(
    "4",
    "R1 node selectors",
    "A node assigns addresses only from pools that select it.",
    "The node's labels at the time of the ADD apply. An error says for each pool why it is not used.",
)
@statement(
    "3",
    "rank 3",
    "Node selectors of pools decide where neither annotations nor the network configuration do.",
    "See R1.",
)
def test_node_assigns_from_pools_that_select_it(make: MakePod, cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "pool4", POOL4, nodeSelector="has(nothing)")
        put_pool(store, "blue", BLUE, nodeSelector="rack in {'a', 'b'} && !has(draining)")
    cluster_node.site.add_node("node2", rack="b")
    pod = make(nodename="node2")
    pod.add()
    assert pod.addresses[0].startswith("10.71.0.")
    refused(make("web-1"), 102, "no IPv4 pool is available to node 'node1'")


@statement(
    "4",
    "R1 default pools",
    "Without pools in netconf and annotations addresses come from all that are available.",
    "In the order of their names; blocks that the node has are filled before it claims others.",
    choice="Available are pools that are neither disabled nor `Manual`, and whose selectors take the node and the namespace.",
)
def test_all_available_pools_are_used(make: MakePod, cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "pool4", "10.75.0.0/31", blockSize=31)
        put_pool(store, "qool4", "10.76.0.0/31", blockSize=31)
    made = [make(f"web-{number}") for number in range(4)]
    for pod in made:
        pod.add()
    assert sorted(pod.addresses[0] for pod in made) == ["10.75.0.0", "10.75.0.1", "10.76.0.0", "10.76.0.1"]


@statement(
    "3",
    "rank 2",
    "The network configuration overrides node selectors.",
    "A pool that it names is used even if it does not select the node.",
)
def test_netconf_overrides_selectors(make: MakePod, cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "blue", BLUE, nodeSelector="has(nothing)")
    pod = make(ipam={"ipv4_pools": ["blue"]})
    pod.add()
    assert pod.addresses[0].startswith("10.71.0.")


@statement(
    "4",
    "R2 existing",
    "A pool that netconf or annotations name must exist.",
    "Code 102 with `(NAME) does not exist`. The pools are read again before an ADD is refused.",
    choice="A disabled pool counts as missing, and one of the other family is refused too.",
)
@statement("7", "7.1", "Naming a pool that does not exist is an error.", "As R2 says.")
@statement(
    "4",
    "R2 exact",
    "A range must be that of a whole pool, not of a part.",
    "Ranges are compared by value: `fd71:0::/120` equals `fd71::/120`.",
)
def test_named_pools_must_exist(make: MakePod, cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "blue", BLUE)
        put_pool(store, "off", "10.72.0.0/24", disabled=True)
    for pool, words in (
        ("nowhere", "(nowhere) does not exist"),
        ("10.71.0.0/25", "(10.71.0.0/25) does not exist"),
        ("off", "(off) does not exist"),
        ("pool6", "(pool6) is not an IPv4 pool"),
    ):
        refused(make(f"web-{pool.partition('.')[0]}", ipam={"ipv4_pools": ["blue", pool]}), 102, words)


@statement(
    "4",
    "R10",
    "Running pods keep their addresses. Pods that are created after a new pool get its addresses.",
    "Only ADD assigns addresses. CHECK succeeds for an attachment whose pool was disabled later.",
)
def test_running_pods_keep_their_addresses(make: MakePod, cluster_node: ClusterNode) -> None:
    pod = make()
    pod.add()
    with session(cluster_node.site) as store:
        put_pool(store, "pool4", POOL4, disabled=True)
        put_pool(store, "new", "10.73.0.0/24")
    assert pod.check().status == 0
    assert pod.copy().add() == pod.result
    pod.delete()
    pod.add()
    assert pod.addresses[0].startswith("10.73.0.")


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True, scope="module")
@statement(
    "4",
    "R11",
    "Policy type `orch` needs controllers for policies, profiles and endpoints to run.",
    "`svc-controllers` is this program. With etcd it writes a policy for each NetworkPolicy of Kubernetes, the profiles that "
    "endpoints name, and changes of a pod's labels and account to its endpoints. With the Kubernetes API these follow from "
    "its objects, and the log calls them idle. An ADD needs none of them to run.",
    choice="svc enforces no policy: a policy agent on each node reads these objects and programs the rules.",
)
def test_controllers_provide_policies_profiles_and_endpoints(
    make: MakePod, site: Site, orch_site: OrchSite, tmp_path: Path
) -> None:
    pod, kube = make(with_policy=True), orch_site.kube
    pod.add()
    assert pod.check().status == 0
    with session(site) as store, cluster(kube, tmp_path, variables_of(site)) as controllers, policy_objects(controllers):
        process = controllers.start(ENABLED_CONTROLLERS=",".join(COPIED))
        process.await_lead()
        kube.call("PATCH", f"{PODS}/web-0", {"metadata": {"labels": {"app": "other"}}}, "application/merge-patch+json")
        wait_until(lambda: endpoint_of(store).labels["app"] == "other")
        if isinstance(site, EtcdSite):
            profiles = [ResourceKey("Profile", name) for name in endpoint_of(store).spec["profiles"]]
            assert profiles[0].name == "kns.default"
            for key in (*profiles, ResourceKey("NetworkPolicy", "knp.default.deny", "default")):
                wait_until(lambda key=key: store.find(key) is not None)  # type: ignore[misc]
        for name in COPIED:
            assert (f"controller {name} is idle" in process.text) == isinstance(site, OrchSite)
        assert process.terminate() == 0


@contextmanager
def policy_objects(controllers: Cluster) -> Iterator[None]:
    """Make the objects of Kubernetes that concern the policy of pods in the namespace `default`."""
    controllers.make_policy("default", "deny")
    controllers.make_account("default", "default")
    try:
        yield
    finally:
        controllers.kube.forget("networkpolicies/default/", "serviceaccounts/default/")


def endpoint_of(store: Backend) -> Resource:
    """Return the endpoint of the only pod, as policy agents read it."""
    (entry,) = store.list(ResourceQuery("WorkloadEndpoint"))
    found: Resource = entry.value
    return found


@statement(
    "4",
    "R11 without controllers",
    "An ADD with policy type `orch` succeeds also while no controllers run.",
    "It needs only the API server. The endpoint has the names of its profiles and its labels, and the controllers write the "
    "profiles when they run.",
)
def test_add_needs_no_controllers(make: MakePod, cluster_node: ClusterNode) -> None:
    pod = make(with_policy=True)
    pod.add()
    assert pod.check().status == 0
    assert isinstance(cluster_node.site, OrchSite) or pod.addresses
