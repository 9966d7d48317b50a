"""Endpoints and nodes that are derived from Kubernetes objects."""

from typing import Any

import pytest

from harness.calico import CALICO_NAMES, captured_pod
from svc.datastore.orch.nodes import node_resource
from svc.model.endpoint import Workload, endpoint
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.pod_endpoint import (
    PodInterface,
    cleared_annotations,
    endpoints_of,
    pod_interface,
    policy_facts,
    wired_annotations,
)
from svc.model.resource import Resource

NOTE = CALICO_NAMES.annotation_prefix

Json = dict[str, Any]


def scheduled_pod(state: str) -> Json:
    """Return the pod of a captured state, with the fields that an API server adds."""
    pod = captured_pod(state)
    port = {"containerPort": 8080, "name": "http", "protocol": "TCP"}
    pod["spec"] = {"nodeName": "node1", "serviceAccountName": "sa", "containers": [{"ports": [port, {"containerPort": 1}]}]}
    return pod


def endpoints(pod: Json) -> list[Resource]:
    return [resource for _, resource in endpoints_of(CALICO_NAMES, pod)]


def test_wired_pod_has_an_endpoint() -> None:
    """All fields that policy agents read are derived from the pod."""
    (endpoint,) = endpoints(scheduled_pod("orch-1-add-dual"))
    assert endpoint.name == "node1-k8s-web--0-eth0"
    assert endpoint.metadata["labels"] == {
        "app": "web",
        "projectcalico.org/namespace": "default",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "sa",
    }
    assert endpoint.spec == {
        "orchestrator": "k8s",
        "node": "node1",
        "containerID": "c3",
        "pod": "web-0",
        "endpoint": "eth0",
        "serviceAccountName": "sa",
        "ipNetworks": ["10.77.0.128/32", "fd77::a680/128"],
        "ipNATs": [{"internalIP": "10.77.0.128", "externalIP": "192.0.2.55"}],
        "profiles": ["kns.default", "ksa.default.sa"],
        "interfaceName": "cali0d7763386da",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""}],
        "qosControls": {"ingressBandwidth": 1000000, "ingressBurst": 1 << 32},
    }


def test_unwired_pod_has_no_endpoint() -> None:
    """This is so after its DEL, on the network of the host, or before it has a node."""
    assert endpoints(scheduled_pod("orch-2-del")) == []
    for change in ({"hostNetwork": True}, {"nodeName": ""}):
        pod = scheduled_pod("orch-1-add-dual")
        pod["spec"] |= change
        assert endpoints(pod) == []


def test_annotations_equal_those_of_calico() -> None:
    """The captured pods have the annotations before and after a DEL."""
    pod, detached = scheduled_pod("orch-1-add-dual"), scheduled_pod("orch-2-del")
    (endpoint,) = endpoints(pod)
    written = {name: text for name, text in pod["metadata"]["annotations"].items() if name.startswith(f"{NOTE}/")}
    del written[f"{NOTE}/floatingIPs"]
    assert wired_annotations(CALICO_NAMES, "eth0", endpoint) == written
    assert cleared_annotations(CALICO_NAMES, "eth0").items() <= detached["metadata"]["annotations"].items()
    assert wired_annotations(CALICO_NAMES, "eth0", Resource("WorkloadEndpoint", {})) == {}


def test_second_interface_has_its_own_annotations() -> None:
    """Those of the first interface do not change."""
    pod = scheduled_pod("orch-1-add-dual")
    second = Resource("WorkloadEndpoint", {}, {"ipNetworks": ["10.78.0.1/32"], "containerID": "c3"})
    annotations = wired_annotations(CALICO_NAMES, "net1", second)
    assert not annotations.keys() & pod["metadata"]["annotations"].keys()
    pod["metadata"]["annotations"] |= annotations
    assert [endpoint.spec["ipNetworks"][0] for endpoint in endpoints(pod)] == ["10.77.0.128/32", "10.78.0.1/32"]
    pod["metadata"]["annotations"] |= cleared_annotations(CALICO_NAMES, "net1")
    assert [endpoint.name for endpoint in endpoints(pod)] == ["node1-k8s-web--0-eth0"]


@pytest.mark.parametrize("text", ["[", '"x"', '["not an address"]', "[1]", "null"])
def test_invalid_annotations_are_ignored(text: str) -> None:
    """A pod must be deletable with any annotations of its user."""
    pod = scheduled_pod("orch-1-add-dual")
    pod["metadata"]["annotations"] |= {f"{NOTE}/floatingIPs": text, f"{NOTE}/allowedSourcePrefixes": text}
    (endpoint,) = endpoints(pod)
    assert "ipNATs" not in endpoint.spec
    assert "allowSpoofedSourcePrefixes" not in endpoint.spec


def test_stored_and_derived_endpoints_are_equal() -> None:
    """An endpoint in a store of its own has the same fields as the one that is derived from the pod."""
    pod = scheduled_pod("orch-1-add-dual")
    pod["metadata"]["annotations"] |= {
        f"{NOTE}/floatingIPs": '["192.0.2.55", "2001:db8::7", "192.0.2.55"]',
        f"{NOTE}/allowedSourcePrefixes": '["10.1.2.3/24", "fd00::/8"]',
        f"{CALICO_NAMES.qos_prefix}/egressPacketRate": "7",
    }
    (derived,) = endpoints(pod)
    key, workload = ResourceKey("WorkloadEndpoint", derived.name, "default"), Workload("c3", "web-0", "default")
    spec = {name: derived.spec[name] for name in ("ipNetworks", "interfaceName")} | {"mac": ""}
    written = endpoint(CALICO_NAMES, key, "node1", workload, "eth0", spec=spec, facts=policy_facts(CALICO_NAMES, pod))
    assert written.spec == derived.spec
    assert list(written.spec) == list(derived.spec)
    assert [nat["externalIP"] for nat in written.spec["ipNATs"]] == ["192.0.2.55", "2001:db8::7"]
    assert written.spec["allowSpoofedSourcePrefixes"] == ["10.1.2.0/24", "fd00::/8"]
    second = endpoint(CALICO_NAMES, key, "node1", workload, "net1", spec=spec, facts=policy_facts(CALICO_NAMES, pod))
    assert "ipNATs" not in second.spec


def test_finished_pod_has_no_addresses() -> None:
    """They may already belong to another container."""
    pod = scheduled_pod("orch-1-add-dual")
    pod["status"] = {"phase": "Succeeded"}
    (endpoint,) = endpoints(pod)
    assert "ipNetworks" not in endpoint.spec


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (ResourceKey("WorkloadEndpoint", "my--node.x-k8s-web--0-eth0", "ns"), PodInterface("web-0", "ns", "eth0")),
        (ResourceKey("WorkloadEndpoint", "node1-cni-c1-eth0", "default"), None),
        (ResourceKey("WorkloadEndpoint", "node1-k8s-web", "default"), None),
        (ResourceKey("WorkloadEndpoint", "node1-k8s-web-eth0", ""), None),
        (ResourceQuery("WorkloadEndpoint", "ns", "node1-k8s-web--0-"), PodInterface("web-0", "ns", "")),
        (ResourceQuery("WorkloadEndpoint", "ns", "node1-k8s-web--"), None),
        (ResourceQuery("WorkloadEndpoint", "ns", "node1-k8s-web"), None),
        (ResourceQuery("WorkloadEndpoint", "", "node1-k8s-web-"), None),
    ],
)
def test_names_of_endpoints_identify_pods(key: ResourceKey | ResourceQuery, expected: PodInterface | None) -> None:
    """Complete names do, and prefixes that end after the name of the pod."""
    assert pod_interface(CALICO_NAMES, key) == expected


def test_node_has_the_fields_of_its_annotations() -> None:
    """Labels and addresses come from the node and from its annotations. Invalid annotations are ignored."""
    annotations = {
        "IPv4Address": "192.0.2.2/24",
        "ASNumber": "64512",
        "IPv4VXLANTunnelAddr": "10.0.0.1",
        "labels": '{"rack":"a","zone":"old"}',
        "Interfaces": "[broken",
        "WireguardPublicKey": "k",
    }
    node = {
        "metadata": {
            "name": "n1",
            "uid": "u",
            "labels": {"zone": "z"},
            "annotations": {f"projectcalico.org/{name}": text for name, text in annotations.items()} | {"other/labels": "x"},
            "managedFields": [],
        },
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}, {"type": "Hostname", "address": "n1"}]},
    }
    resource = node_resource(CALICO_NAMES, node)
    assert resource.metadata == {"name": "n1", "uid": "u", "labels": {"zone": "z", "rack": "a"}}
    assert resource.spec == {
        "bgp": {"ipv4Address": "192.0.2.2/24", "asNumber": 64512},
        "ipv4VXLANTunnelAddr": "10.0.0.1",
        "orchRefs": [{"nodeName": "n1", "orchestrator": "k8s"}],
        "addresses": [
            {"address": "192.0.2.2/24", "type": "CalicoNodeIP"},
            {"address": "192.0.2.2", "type": "InternalIP"},
        ],
    }
    assert resource.status == {"wireguardPublicKey": "k", "podCIDRs": ["10.1.0.0/24"]}


@pytest.mark.parametrize("depth", [300, 1010])
def test_deeply_nested_annotations_of_a_node_count_as_missing(depth: int) -> None:
    """Whoever has the rights of a node can write them. What follows from a node must be storable."""
    nested = "[" * depth + "]" * depth
    notes = {"labels": f'{{"a": {nested}}}', "annotations": f'{{"a": {nested}}}', "Interfaces": nested}
    annotations = {f"{CALICO_NAMES.label_prefix}/{name}": text for name, text in notes.items()}
    found = node_resource(CALICO_NAMES, {"metadata": {"name": "n", "annotations": annotations}})
    assert (found.labels, found.metadata.get("annotations"), found.spec.get("interfaces")) == ({}, None, None)


def test_labels_of_a_node_are_texts() -> None:
    notes = {f"{CALICO_NAMES.label_prefix}/labels": '{"a": "b", "c": 5, "d": null, "e": {"f": "g"}}'}
    assert node_resource(CALICO_NAMES, {"metadata": {"name": "n", "annotations": notes}}).labels == {"a": "b"}
