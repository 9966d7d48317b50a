"""Section 2.9, the precedence of section 3, and the rules about pools."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, session
from harness.ipam import put_pool
from harness.kube import Kube
from harness.node import POOL4
from harness.pod import Pod, refused
from harness.spec_rows import statement
from svc.names import DEFAULT

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
BLUE = "10.71.0.0/24"
EMBEDDED = pytest.mark.parametrize(
    "site", ["embedded"], indirect=True, scope="module"
)  # the tests run svcctl repeatedly, which is slow
ON_ORCH = pytest.mark.parametrize("site", ["orch"], indirect=True, scope="module")


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


@ON_ORCH
@statement(
    "2.9",
    "host endpoints",
    "Automatic ones have the label `created-by` with the controllers' name, and their names end in `-auto-hep`.",
    "The names profile has both words, and `svcctl crd apply` defines the resource. Cluster-wide controllers make them; "
    "the plugin never changes them.",
    choice="An ADD does not need the controllers: without them automatic host endpoints do not exist.",
)
def test_automatic_host_endpoints_are_not_changed(make: MakePod, kube: Kube) -> None:
    path = f"/apis/{DEFAULT.crd_api_version}/hostendpoints"
    written: dict[str, Any] = {
        "apiVersion": DEFAULT.crd_api_version, "kind": "HostEndpoint",
        "metadata": {"name": "node1-auto-hep", "labels": {f"{DEFAULT.label_prefix}/created-by": DEFAULT.controllers}},
        "spec": {"node": "node1", "interfaceName": "*", "profiles": [DEFAULT.default_allow_profile]},
    }  # fmt: skip
    kept = kube.call("POST", path, written)
    pod = make()
    pod.add()
    pod.delete()
    no_attachments: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert pod.call("GC", **no_attachments).status == 0
    assert kube.call("GET", path)["items"] == [kept]
    assert (kept["metadata"]["labels"], kept["spec"]) == (written["metadata"]["labels"], written["spec"])
    kube.call("DELETE", f"{path}/node1-auto-hep")


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


@statement(
    "4",
    "R11",
    "Policy type `orch` needs controllers for policies, profiles and endpoints to run.",
    "An ADD does not need them, only the API server. The endpoint has the names of its profiles and its labels; the "
    "program that enforces policy must know them.",
    choice="The rules of policies are not part of this project: the deployment's policy agent and controllers provide them.",
)
def test_add_needs_no_controllers(make: MakePod, cluster_node: ClusterNode) -> None:
    pod = make(with_policy=True)
    pod.add()
    assert pod.check().status == 0
    assert isinstance(cluster_node.site, OrchSite) or pod.addresses
