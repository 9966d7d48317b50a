"""On from every state that was captured of the incumbent: by our ADD or DEL to the next one, key by key.

Ours begins its search for a block elsewhere in the pool, where the captured reservation would lie within it: all of that block
is reserved instead. Ours says in an endpoint how its traffic is shaped, the incumbent does so in custom resources alone: it is
compared without that.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.calico_states import comparable, etcd_state, orch_state, result
from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, OrchSite, session, set_ready
from harness.etcd import Cluster
from harness.ipam import put_pool, put_reservation
from harness.kube import Kube
from harness.netns import Netns
from harness.orch import PODS
from harness.pod import Pod
from svc.model.custom_resources import kind_plural
from svc.netconf.names_profiles import load_profile

pytestmark = pytest.mark.root

Json = dict[str, Any]
MakeSandbox = Callable[[], Netns]
Attach = Callable[[str], Pod]

CALICO = load_profile("calico")
GROUP = f"/apis/{CALICO.crd_api_version}"
KINDS = ("IPAMBlock", "BlockAffinity", "IPAMHandle")
STATES = ("etcd-0-empty", "etcd-1-add-ipv4", "etcd-2-add-pod-dual", "etcd-3-del-ipv4", "etcd-4-del-all")
STEPS = (("ADD", "c1"), ("ADD", "c2"), ("DEL", "c1"), ("DEL", "c2"))  # from each of these to the next
RESULTS = {"c1": "result-1-add-ipv4.json", "c2": "result-2-add-pod-dual.json", "c3": "result-3-orch-add-dual.json"}
RESERVED, RESERVED_HERE = "10.77.0.0/30", "10.77.0.0/26"
NOTES = {"cni.projectcalico.org/floatingIPs": '["192.0.2.55"]', "kubernetes.io/ingress-bandwidth": "1M"}


@pytest.fixture(scope="module")
def old_etcd(etcd: Cluster) -> EtcdSite:
    return EtcdSite(etcd, CALICO)


@pytest.fixture(scope="module")
def old_orch(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> OrchSite:
    return OrchSite(kube, tmp_path_factory.mktemp("site"), CALICO)


@pytest.fixture(scope="module")
def node(old_etcd: EtcdSite, old_orch: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    """With the incumbent's executables replaced by ours."""
    with ClusterNode(tmp_path_factory.mktemp("node") / "node", "node1", old_etcd, old_orch) as node:
        install = ("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", "calico")
        node.svcctl(*install)
        yield node


@pytest.fixture
def attach(node: ClusterNode, old_etcd: EtcdSite, old_orch: OrchSite, sandbox: MakeSandbox) -> Iterator[Attach]:
    """The attachments of the captured runs: c1 is a bare container, c2 a pod whose addresses are in etcd, c3 one with custom
    resources. Nothing is left of them, nor of any state."""
    network: Json = {"cniVersion": "1.0.0", "name": "net1", "type": "calico"}
    pod: Json = {
        "ipam": {"type": "calico-ipam", "assign_ipv6": "true"}, "policy": {"type": "k8s"},
        "kubernetes": {"kubeconfig": str(old_orch.kubeconfig)}, "feature_control": {"floating_ips": True},
        "args": "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default",
    }  # fmt: skip
    made: list[Pod] = []

    def make(container: str) -> Pod:
        made.append(node.pod(sandbox(), container, **network, **given[container]))
        return made[-1]

    given: dict[str, Json] = {"c1": {"ipam": {"type": "calico-ipam"}}, "c2": pod, "c3": pod | old_orch.config}
    try:
        yield make
        assert node.netns.links() == ["uplink"]
    finally:
        for each in made:
            each.call("DEL")
        old_etcd.clear()
        old_orch.clear()


# etcd


def captured_state(number: int) -> dict[str, str]:
    documents = etcd_state(f"{STATES[number]}.jsonl")
    return {key: text.replace(RESERVED, RESERVED_HERE) for key, text in documents.items()}


def load(site: EtcdSite, number: int) -> None:
    for key, text in captured_state(number).items():
        site.running.put(key, text)


CLAIMS = "/calico/svc/v1/claims/"  # of ours alone: no other program lists them


def stored(site: EtcdSite, place: dict[str, str]) -> dict[str, str]:
    """Every document in the order of its fields; addresses as if our blocks were at the captured places."""
    documents = {key: value for key, value in site.running.stored("/calico/") if not key.startswith(CLAIMS)}
    for document in documents.values():
        document.get("spec", {}).pop("qosControls", None)
    return {moved(key, place): moved(spelled(document), place) for key, document in documents.items()}


def expected(number: int) -> dict[str, str]:
    """The captured state."""
    return {key: spelled(json.loads(text)) for key, text in captured_state(number).items()}


def spelled(document: Json) -> str:
    return json.dumps(comparable(document))


def moved(text: str, place: dict[str, str]) -> str:
    for ours, theirs in place.items():
        text = text.replace(ours, theirs)
    return text


def places(pod: Pod, captured: str) -> dict[str, str]:
    """Our addresses, and theirs: for the first one of a block this is where the block is."""
    ours, theirs = ([ip["address"].split("/")[0] for ip in each["ips"]] for each in (pod.result, result(captured)))
    return dict(zip(ours, theirs, strict=True))


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[" ".join(step) for step in STEPS])
def test_one_step_in_etcd(attach: Attach, node: ClusterNode, old_etcd: EtcdSite, kube: Kube, number: int) -> None:
    """What the incumbent has attached is ours to take down; what ours attaches beside it is the same."""
    verb, container = STEPS[number]
    put_pod(kube)
    load(old_etcd, number)
    pod = attach(container)
    place: dict[str, str] = {}
    if verb == "ADD":
        pod.add()
        place = places(pod, RESULTS[container])
    else:
        pod.delete()
    assert stored(old_etcd, place) == expected(number + 1)
    pod.delete()


def test_all_steps_in_etcd(attach: Attach, node: ClusterNode, old_etcd: EtcdSite, kube: Kube) -> None:
    """What ours makes of its own states is the same."""
    put_pod(kube)
    load(old_etcd, 0)
    pods = {name: attach(name) for name in ("c1", "c2")}
    place: dict[str, str] = {}
    for number, (verb, container) in enumerate(STEPS, start=1):
        pod = pods[container]
        if verb == "ADD":
            pod.add()
            place |= places(pod, RESULTS[container])
            demand_same_result(pod, RESULTS[container], place)
        else:
            pod.delete()
        assert stored(old_etcd, place) == expected(number)


# custom resources


def put_pod(kube: Kube, notes: dict[str, str] | None = None) -> None:
    spec = {
        "nodeName": "node1", "serviceAccountName": "default", "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}],
    }  # fmt: skip
    metadata = {"name": "web-0", "labels": {"app": "web"}, "annotations": notes or NOTES}
    kube.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def found(kube: Kube) -> dict[tuple[str, str], Json]:
    """Custom resources and the pod's annotations."""
    resources = [item | {"kind": kind} for kind in KINDS for item in kube.call("GET", f"{GROUP}/{kind_plural(kind)}")["items"]]
    pod = kube.call("GET", f"{PODS}/web-0")
    return by_name([*resources, pod | {"kind": "Pod"}])


def by_name(documents: list[Json]) -> dict[tuple[str, str], Json]:
    """The pod with nothing but its annotations; of these, those of the capture's tools are left out."""
    named = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    for (kind, _), document in named.items():
        if kind == "Pod":
            document["metadata"] = {"annotations": {
                name: text for name, text in document["metadata"]["annotations"].items() if "last-applied" not in name
            }}  # fmt: skip
            document.pop("spec", None)
            document.pop("status", None)
            document.pop("apiVersion", None)
    return {name: comparable(document) for name, document in named.items()}


def load_resources(kube: Kube, documents: list[Json]) -> None:
    """But for the pod, whose annotations are returned."""
    for document in documents:
        if document["kind"] == "Pod":
            put_pod(kube, document["metadata"]["annotations"])
            continue
        metadata = {
            name: document["metadata"][name] for name in ("name", "annotations", "labels") if name in document["metadata"]
        }
        kube.call("POST", f"{GROUP}/{kind_plural(document['kind'])}", document | {"metadata": metadata})


@pytest.fixture
def pools(old_orch: OrchSite) -> None:
    with session(old_orch) as store:
        set_ready(store)
        put_pool(store, "pool4", "10.77.0.0/24", blockSize=26)
        put_pool(store, "pool6", "fd77::/112", blockSize=122)
        put_reservation(store, "res", RESERVED_HERE)
    old_orch.add_node("node1", zone="a")


@pytest.mark.usefixtures("pools")
def test_add_with_custom_resources(attach: Attach, node: ClusterNode, kube: Kube) -> None:
    """And its DEL: into a datastore without addresses."""
    put_pod(kube)
    pod = attach("c3")
    pod.add()
    place = places(pod, RESULTS["c3"])
    demand_same_result(pod, RESULTS["c3"], place)
    assert relocated(found(kube), place) == by_name(orch_state("orch-1-add-dual.jsonl"))
    pod.delete()
    assert relocated(found(kube), place) == by_name(orch_state("orch-2-del.jsonl"))


@pytest.mark.usefixtures("pools")
def test_del_with_custom_resources(attach: Attach, node: ClusterNode, kube: Kube) -> None:
    load_resources(kube, orch_state("orch-1-add-dual.jsonl"))
    attach("c3").delete()
    assert found(kube) == by_name(orch_state("orch-2-del.jsonl"))


@pytest.mark.usefixtures("pools")
def test_add_after_a_del_with_custom_resources(attach: Attach, node: ClusterNode, kube: Kube) -> None:
    """The node's own blocks are used again; which address comes next is another matter: the one freed last."""
    load_resources(kube, orch_state("orch-2-del.jsonl"))
    pod = attach("c3")
    pod.add()
    assert [ip["address"] for ip in pod.result["ips"]] == ["10.77.0.129/32", "fd77::a681/128"]
    kinds = {name for name in found(kube) if name[0] != "IPAMHandle"}
    assert kinds == {name for name in by_name(orch_state("orch-1-add-dual.jsonl")) if name[0] != "IPAMHandle"}
    pod.delete()


def relocated(documents: dict[tuple[str, str], Json], place: dict[str, str]) -> dict[tuple[str, str], Json]:
    """As if our blocks were at the captured places; names of objects have dashes for dots and colons."""
    dashed = {dashes(ours): dashes(theirs) for ours, theirs in place.items()}
    return {
        (kind, moved(name, dashed)): json.loads(moved(moved(json.dumps(document), place), dashed))
        for (kind, name), document in documents.items()
    }


def dashes(address: str) -> str:
    return address.replace(".", "-").replace(":", "-")


def demand_same_result(pod: Pod, captured: str, place: dict[str, str]) -> None:
    """But for MAC address and sandbox."""
    printed, theirs = json.loads(moved(json.dumps(pod.result), place)), result(captured)
    for each in (printed, theirs):
        each["interfaces"][1] |= {"mac": "", "sandbox": ""}
    assert printed == theirs
