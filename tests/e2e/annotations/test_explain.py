"""`svcctl explain`: what an ADD would get, on each datastore. The ADD that follows gets it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.annotations import NAMESPACE, POOL, UNAVAILABLE, annotate
from harness.cluster_node import ClusterNode
from harness.datastores import session
from harness.ipam import put_pool
from harness.kube import Kube
from harness.orch import put_pod
from harness.pod import Pod
from svc.ipam.settings import update_settings
from svc.model.ipam import IpamConfig
from svc.model.keys import AffinityQuery, BlockQuery, HandleQuery, ResourceQuery

pytestmark = pytest.mark.root

Json = dict[str, Any]
MakePod = Callable[..., Pod]
Explain = Callable[..., Json]


@pytest.fixture(autouse=True)
def pools(cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        put_pool(store, "blue", "10.71.0.0/24")
        put_pool(store, "grey", "10.73.0.0/24", disabled=True)
        put_pool(store, "elsewhere", "10.74.0.0/24", nodeSelector="has(nothing)")


@pytest.fixture
def explain(cluster_node: ClusterNode) -> Explain:
    """Return a function that explains the pod, and requires that nothing is written."""

    def explained(pod: Pod, *options: str, name: str = "default/web-0") -> Json:
        before = stored(cluster_node)
        netconf = cluster_node.directory / "explain.json"
        netconf.write_text(json.dumps(pod.config))
        done = cluster_node.svcctl("--netconf", str(netconf), "explain", name, "-o", "json", *options)
        assert stored(cluster_node) == before
        (document,) = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    return explained


def stored(node: ClusterNode) -> list[tuple[str, str]]:
    """Return everything that an ADD may write, with revisions."""
    queries = (
        *(BlockQuery(0), HandleQuery(), AffinityQuery()),
        *(ResourceQuery(kind) for kind in ("WorkloadEndpoint", "Node", "IPPool")),
    )
    with session(node.site) as store:
        return [(str(entry.key), entry.revision) for query in queries for entry in store.list(query)]


def verdicts(document: Json, family: str = "IPv4") -> Json:
    return {pool["name"]: pool["verdict"] for pool in document["families"][family]["pools"]}


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {"ipv4pools": ["blue"]},
        {"ipFamilies": ["IPv4"]},
        {"ipAddrs": ["10.71.0.77"]},
        {"ipAddrsNoIpam": ["192.0.2.77"]},
    ],
    ids=lambda notes: next(iter(notes), "none"),
)
def test_add_gets_what_was_explained(make: MakePod, explain: Explain, notes: Json) -> None:
    pod = make(notes=notes)
    found = explain(pod)
    assert (found["pod"], found["node"]) == ("default/web-0", "node1")
    assert "error" not in found["outcome"]
    pod.add()
    assert found["outcome"]["addresses"] == [address.partition("/")[0] for address in pod.addresses]
    again = explain(pod)
    assert again["present"] == found["outcome"]["addresses"]


def test_each_pool_has_its_verdict(make: MakePod, explain: Explain) -> None:
    pod = make(notes={})
    found = verdicts(explain(pod))
    assert found["blue"] == ""
    assert found["grey"] == "is disabled"
    assert found["elsewhere"].startswith("selects nodes by has(nothing)")


def test_named_pool_comes_first_and_rejects_the_others(make: MakePod, explain: Explain, kube: Kube) -> None:
    """The annotation of the namespace counts, and the answer shows it."""
    annotate(kube, NAMESPACE, ipv4pools=["elsewhere"])
    document = explain(make(notes={}))
    found = verdicts(document)
    assert next(iter(found)) == "elsewhere"
    assert found["elsewhere"] == ""
    assert found["blue"] == "is not asked for"
    assert any("ipv4pools" in text and "namespace default" in text for text in document["annotations"])


def test_blocks_show_used_free_and_cooling_addresses(make: MakePod, explain: Explain, cluster_node: ClusterNode) -> None:
    with session(cluster_node.site) as store:
        update_settings(store, lambda _: IpamConfig(cooldown_seconds=600), lambda name, value: f"{name}={value}")
    first, second = make("web-0", "c1", notes={"ipv4pools": ["blue"]}), make("web-1", "c2", notes={"ipv4pools": ["blue"]})
    first.add()
    second.add()
    second.delete()
    family = explain(first)["families"]["IPv4"]
    (blue,) = [pool for pool in family["pools"] if pool["name"] == "blue"]
    (block,) = blue["blocks"]
    assert (block["used"], block["cooldown"], block["free"]) == (1, 1, 62)
    assert family["ipCooldownSeconds"] == 600


@pytest.mark.parametrize(("notes", "code"), [({"ipv4pools": ["missing"]}, POOL), ({"ipAddrs": ["198.51.100.9"]}, UNAVAILABLE)])
def test_refusal_is_explained_with_its_code(make: MakePod, explain: Explain, notes: Json, code: int) -> None:
    pod = make(notes=notes)
    error = explain(pod)["outcome"]["error"]
    failed = pod.failed("ADD")
    answer = json.loads(failed.stdout)
    assert (error["code"], error["msg"]) == (answer["code"], answer["msg"]) == (code, error["msg"])


def test_another_node_may_be_explained(make: MakePod, explain: Explain, cluster_node: ClusterNode) -> None:
    """It has no block yet, and would borrow from node1 only if none were free."""
    cluster_node.site.add_node("node2")
    pod = make(notes={"ipv4pools": ["blue"]})
    pod.add()
    document = explain(pod, "--node", "node2")
    (blue,) = [pool for pool in document["families"]["IPv4"]["pools"] if pool["name"] == "blue"]
    assert (document["node"], blue["blocks"], blue["toBorrow"]) == ("node2", [], 1)
    assert document["outcome"]["addresses"][0] not in pod.addresses


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("default/gone", "does not know pod default/gone"),
        ("default/host-net", "uses the network of its node"),
        ("a/b/c", "is not [NAMESPACE/]POD"),
        ("default/", "is not [NAMESPACE/]POD"),
    ],
)
def test_pod_without_an_add_is_an_error(make: MakePod, cluster_node: ClusterNode, kube: Kube, name: str, words: str) -> None:
    pod = make(notes={})
    put_pod(kube, "host-net", hostNetwork=True)
    netconf = cluster_node.directory / "explain.json"
    netconf.write_text(json.dumps(pod.config))
    done = cluster_node.svcctl("--netconf", str(netconf), "explain", name, check=False)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
