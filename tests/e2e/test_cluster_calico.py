"""Calls of svc on datastores that were captured of Calico: each ADD or DEL must lead to the next captured state.

svc begins its search for a block elsewhere in the pool than Calico, so the tests reserve the whole first block. svc stores
bandwidth limits in every endpoint and Calico only in custom resources, so the comparison in etcd omits them.
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
STEPS = (("ADD", "c1"), ("ADD", "c2"), ("DEL", "c1"), ("DEL", "c2"))  # the calls that lead from one state to the next
RESULTS = {"c1": "result-1-add-ipv4.json", "c2": "result-2-add-pod-dual.json", "c3": "result-3-orch-add-dual.json"}
CAPTURED_RESERVATION, RESERVATION = "10.77.0.0/30", "10.77.0.0/26"
ANNOTATIONS = {"cni.projectcalico.org/floatingIPs": '["192.0.2.55"]', "kubernetes.io/ingress-bandwidth": "1M"}


@pytest.fixture(scope="module")
def calico_etcd(etcd: Cluster) -> EtcdSite:
    return EtcdSite(etcd, CALICO)


@pytest.fixture(scope="module")
def calico_orch(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> OrchSite:
    return OrchSite(kube, tmp_path_factory.mktemp("site"), CALICO)


@pytest.fixture(scope="module")
def node(calico_etcd: EtcdSite, calico_orch: OrchSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    """Start a node on which the executables of svc have replaced those of Calico."""
    with ClusterNode(tmp_path_factory.mktemp("node") / "node", "node1", calico_etcd, calico_orch) as node:
        install = ("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", "calico")
        node.svcctl(*install)
        yield node


@pytest.fixture
def attach(node: ClusterNode, calico_etcd: EtcdSite, calico_orch: OrchSite, sandbox: MakeSandbox) -> Iterator[Attach]:
    """Return a function that makes the attachments of the captured runs, and remove all of them and the states at the end.

    c1 is a container that is not a pod, c2 a pod with addresses in etcd, and c3 a pod with custom resources.
    """
    network: Json = {"cniVersion": "1.0.0", "name": "net1", "type": "calico"}
    pod: Json = {
        "ipam": {"type": "calico-ipam", "assign_ipv6": "true"}, "policy": {"type": "k8s"},
        "kubernetes": {"kubeconfig": str(calico_orch.kubeconfig)}, "feature_control": {"floating_ips": True},
        "args": "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default",
    }  # fmt: skip
    made: list[Pod] = []

    def make(container: str) -> Pod:
        made.append(node.pod(sandbox(), container, **network, **given[container]))
        return made[-1]

    given: dict[str, Json] = {"c1": {"ipam": {"type": "calico-ipam"}}, "c2": pod, "c3": pod | calico_orch.config}
    try:
        yield make
        assert node.netns.links() == ["uplink"]
    finally:
        for each in made:
            each.call("DEL")
        calico_etcd.clear()
        calico_orch.clear()


# etcd


def captured_state(number: int) -> dict[str, str]:
    documents = etcd_state(f"{STATES[number]}.jsonl")
    return {key: text.replace(CAPTURED_RESERVATION, RESERVATION) for key, text in documents.items()}


def load(site: EtcdSite, number: int) -> None:
    for key, text in captured_state(number).items():
        site.running.put(key, text)


CLAIMS = "/calico/svc/v1/claims/"  # node claims, which Calico does not have


def stored(site: EtcdSite, captured_addresses: dict[str, str]) -> dict[str, str]:
    """Return every document with its fields in order. Addresses are replaced by the captured ones."""
    documents = {key: value for key, value in site.running.stored("/calico/") if not key.startswith(CLAIMS)}
    for document in documents.values():
        document.get("spec", {}).pop("qosControls", None)
    return {
        translated(key, captured_addresses): translated(spelled(document), captured_addresses)
        for key, document in documents.items()
    }


def expected(number: int) -> dict[str, str]:
    """Return the captured state."""
    return {key: spelled(json.loads(text)) for key, text in captured_state(number).items()}


def spelled(document: Json) -> str:
    return json.dumps(comparable(document))


def translated(text: str, captured_addresses: dict[str, str]) -> str:
    for own, captured in captured_addresses.items():
        text = text.replace(own, captured)
    return text


def address_pairs(pod: Pod, captured: str) -> dict[str, str]:
    """Map the pod's addresses to the captured ones. This also maps blocks, whose first address is their CIDR."""
    own, expected = ([ip["address"].split("/")[0] for ip in each["ips"]] for each in (pod.result, result(captured)))
    return dict(zip(own, expected, strict=True))


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[" ".join(step) for step in STEPS])
def test_one_call_leads_to_the_next_state_in_etcd(
    attach: Attach, node: ClusterNode, calico_etcd: EtcdSite, kube: Kube, number: int
) -> None:
    """svc tears down attachments of Calico, and its own attachments have the same documents."""
    verb, container = STEPS[number]
    put_pod(kube)
    load(calico_etcd, number)
    pod = attach(container)
    captured_addresses: dict[str, str] = {}
    if verb == "ADD":
        pod.add()
        captured_addresses = address_pairs(pod, RESULTS[container])
    else:
        pod.delete()
    assert stored(calico_etcd, captured_addresses) == expected(number + 1)
    pod.delete()


def test_all_calls_lead_to_the_captured_states_in_etcd(
    attach: Attach, node: ClusterNode, calico_etcd: EtcdSite, kube: Kube
) -> None:
    """svc reaches the same states from the states that it wrote itself."""
    put_pod(kube)
    load(calico_etcd, 0)
    pods = {name: attach(name) for name in ("c1", "c2")}
    captured_addresses: dict[str, str] = {}
    for number, (verb, container) in enumerate(STEPS, start=1):
        pod = pods[container]
        if verb == "ADD":
            pod.add()
            captured_addresses |= address_pairs(pod, RESULTS[container])
            require_same_result(pod, RESULTS[container], captured_addresses)
        else:
            pod.delete()
        assert stored(calico_etcd, captured_addresses) == expected(number)


# custom resources


def put_pod(kube: Kube, annotations: dict[str, str] | None = None) -> None:
    spec = {
        "nodeName": "node1", "serviceAccountName": "default", "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}],
    }  # fmt: skip
    metadata = {"name": "web-0", "labels": {"app": "web"}, "annotations": annotations or ANNOTATIONS}
    kube.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def found(kube: Kube) -> dict[tuple[str, str], Json]:
    """Return the custom resources and the pod's annotations."""
    resources = [item | {"kind": kind} for kind in KINDS for item in kube.call("GET", f"{GROUP}/{kind_plural(kind)}")["items"]]
    pod = kube.call("GET", f"{PODS}/web-0")
    return by_name([*resources, pod | {"kind": "Pod"}])


def by_name(documents: list[Json]) -> dict[tuple[str, str], Json]:
    """Return documents by kind and name. A pod has only its annotations, without that of kubectl."""
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
    """Create the custom resources, and the pod with the captured annotations."""
    for document in documents:
        if document["kind"] == "Pod":
            put_pod(kube, document["metadata"]["annotations"])
            continue
        metadata = {
            name: document["metadata"][name] for name in ("name", "annotations", "labels") if name in document["metadata"]
        }
        kube.call("POST", f"{GROUP}/{kind_plural(document['kind'])}", document | {"metadata": metadata})


@pytest.fixture
def pools(calico_orch: OrchSite) -> None:
    with session(calico_orch) as store:
        set_ready(store)
        put_pool(store, "pool4", "10.77.0.0/24", blockSize=26)
        put_pool(store, "pool6", "fd77::/112", blockSize=122)
        put_reservation(store, "res", RESERVATION)
    calico_orch.add_node("node1", zone="a")


@pytest.mark.usefixtures("pools")
def test_add_and_del_lead_to_the_captured_custom_resources(attach: Attach, node: ClusterNode, kube: Kube) -> None:
    """Before the ADD, the datastore has no addresses. The DEL leads to its captured state as well."""
    put_pod(kube)
    pod = attach("c3")
    pod.add()
    captured_addresses = address_pairs(pod, RESULTS["c3"])
    require_same_result(pod, RESULTS["c3"], captured_addresses)
    assert relocated(found(kube), captured_addresses) == by_name(orch_state("orch-1-add-dual.jsonl"))
    pod.delete()
    assert relocated(found(kube), captured_addresses) == by_name(orch_state("orch-2-del.jsonl"))


@pytest.mark.usefixtures("pools")
def test_del_of_a_calico_attachment_leads_to_the_captured_custom_resources(
    attach: Attach, node: ClusterNode, kube: Kube
) -> None:
    load_resources(kube, orch_state("orch-1-add-dual.jsonl"))
    attach("c3").delete()
    assert found(kube) == by_name(orch_state("orch-2-del.jsonl"))


@pytest.mark.usefixtures("pools")
def test_add_uses_the_blocks_of_the_node_again(attach: Attach, node: ClusterNode, kube: Kube) -> None:
    """svc uses the node's blocks again. Its next address differs from Calico's, so only the kinds and names are compared."""
    load_resources(kube, orch_state("orch-2-del.jsonl"))
    pod = attach("c3")
    pod.add()
    assert [ip["address"] for ip in pod.result["ips"]] == ["10.77.0.129/32", "fd77::a681/128"]
    kinds = {name for name in found(kube) if name[0] != "IPAMHandle"}
    assert kinds == {name for name in by_name(orch_state("orch-1-add-dual.jsonl")) if name[0] != "IPAMHandle"}
    pod.delete()


def relocated(documents: dict[tuple[str, str], Json], captured_addresses: dict[str, str]) -> dict[tuple[str, str], Json]:
    """Replace addresses by the captured ones. Names of objects have dashes instead of dots and colons."""
    dashed = {dashes(own): dashes(captured) for own, captured in captured_addresses.items()}
    return {
        (kind, translated(name, dashed)): json.loads(translated(translated(json.dumps(document), captured_addresses), dashed))
        for (kind, name), document in documents.items()
    }


def dashes(address: str) -> str:
    return address.replace(".", "-").replace(":", "-")


def require_same_result(pod: Pod, captured: str, captured_addresses: dict[str, str]) -> None:
    """Require the captured result, except for MAC address and sandbox."""
    printed, expected = json.loads(translated(json.dumps(pod.result), captured_addresses)), result(captured)
    for each in (printed, expected):
        each["interfaces"][1] |= {"mac": "", "sandbox": ""}
    assert printed == expected
