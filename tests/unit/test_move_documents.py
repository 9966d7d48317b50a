"""Conversion of the documents of a move: names of nodes, identities, what is copied and what blocks."""

from typing import Any

import pytest

from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.datastore.api import StoreError
from svc.model.ipam import Affinity, Attribute, Block, Handle, IpamConfig
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey, Key, NodeClaimKey, ResourceKey
from svc.model.kv_codec import Value
from svc.model.resource import Resource
from svc.move import convert
from svc.move.convert import Form, converted, in_order
from svc.move.nodes import NodeNames, between, is_of_tunnel
from svc.names import DEFAULT

NODES = NodeNames({"a.etcd": "a", "b": "c"})
CIDR = Cidr("10.0.0.0/30")
TO_API, TO_KEYS = Form(DEFAULT, NODES, True), Form(DEFAULT, NodeNames({"a": "a.etcd"}), False)


def node(name: str, *references: Any) -> Resource:
    return Resource("Node", {"name": name}, {"orchRefs": list(references)})


def reference(name: str, orchestrator: str = "k8s") -> dict[str, str]:
    return {"nodeName": name, "orchestrator": orchestrator}


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        ("ipip-tunnel-addr-a.etcd", "ipip-tunnel-addr-a"),
        ("vxlan-tunnel-addr-a.etcd", "vxlan-tunnel-addr-a"),
        ("vxlan-v6-tunnel-addr-b", "vxlan-v6-tunnel-addr-c"),
        ("wireguard-tunnel-addr-a.etcd", "wireguard-tunnel-addr-a"),
        ("wireguard-v6-tunnel-addr-a.etcd", "wireguard-v6-tunnel-addr-a"),
        ("vxlan-tunnel-addr-unknown", "vxlan-tunnel-addr-unknown"),
        ("net.a.etcd", "net.a.etcd"),
        ("a.etcd", "a.etcd"),
    ],
)
def test_handles_of_tunnels_get_the_name_of_their_node(handle: str, expected: str) -> None:
    assert NODES.handle(handle) == expected
    assert is_of_tunnel(handle) is ("tunnel" in handle)


def test_blocks_get_the_names_of_their_nodes() -> None:
    attributes = [
        Attribute("net.c1", {"node": "a.etcd", "pod": "a.etcd"}, {"node": "b"}, None, {"node": "a.etcd"}),
        Attribute("vxlan-tunnel-addr-b", {"node": "b"}),
        Attribute(None, None, None, "2026-01-01T00:00:00Z"),
    ]
    block = Block(CIDR, "host:a.etcd", Ordinals(2), 7, None, attributes, {0: 3}, extra={"node": "a.etcd"})
    found = NODES.block(block)
    assert found.affinity == "host:a"
    assert (found.sequence, found.ordinal_sequences, found.extra) == (7, {0: 3}, {"node": "a.etcd"})
    assert found.attributes is not None
    assert [attribute.to_json() for attribute in found.attributes] == [
        {
            "handle_id": "net.c1",
            "secondary": {"node": "a", "pod": "a.etcd"},
            "alternateOwnerAttrs": {"node": "c"},
            "node": "a.etcd",
        },
        {"handle_id": "vxlan-tunnel-addr-c", "secondary": {"node": "c"}},
        {"releasedAt": "2026-01-01T00:00:00Z"},
    ]
    assert block.affinity == "host:a.etcd"


@pytest.mark.parametrize("affinity", [None, "virtual:load-balancer", "host:other"])
def test_other_affinities_stay(affinity: str | None) -> None:
    assert NODES.block(Block(CIDR, affinity, Ordinals(2), 7)).affinity == affinity
    assert NODES.key(AffinityKey("a.etcd", CIDR, "virtual")) == AffinityKey("a.etcd", CIDR, "virtual")


def test_names_follow_from_the_nodes_of_both_datastores() -> None:
    etcd = [node("a.etcd", reference("x", "mesos"), reference("a")), node("b", reference("b")), node("lost")]
    kube = [node("a", reference("a")), node("b", reference("b"))]
    assert between(DEFAULT, etcd, kube).renamed == {"a.etcd": "a", "b": "b"}
    assert between(DEFAULT, kube, etcd).renamed == {"a": "a.etcd", "b": "b"}
    assert between(DEFAULT, kube, []).renamed == {"a": "a", "b": "b"}


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(StoreError, match="nodes 'a' and 'b' are both node 'x' of Kubernetes"):
        between(DEFAULT, [node("a", reference("x")), node("b", reference("x"))], [])


@pytest.mark.parametrize(
    "references", [[], ["text"], [{"nodeName": "a"}], [{"orchestrator": "k8s"}], [reference("a", "other")]]
)
def test_nodes_without_a_name_in_kubernetes_have_no_counterpart(references: list[Any]) -> None:
    assert between(DEFAULT, [node("a", *references)], []).renamed == {}
    assert between(DEFAULT, [Resource("Node", {"name": "a"}, {"orchRefs": "text"})], []).renamed == {}


def test_identities_are_kept_and_restored() -> None:
    metadata = {"name": "p", "uid": "u", "creationTimestamp": "t", "annotations": {"own": "1"}}
    there = convert.with_identity(TO_API, Resource("IPPool", metadata, {"cidr": "10.0.0.0/24"}))
    kept = there.metadata["annotations"][convert.identity_annotation(DEFAULT)]
    assert kept == '{"uid":"u","creationTimestamp":"t"}'
    there.metadata |= {"uid": "other", "creationTimestamp": "later"}
    assert convert.with_identity(TO_API, there).metadata["annotations"] == there.metadata["annotations"]
    assert convert.with_identity(TO_KEYS, there).metadata == metadata
    assert convert.with_identity(TO_KEYS, convert.with_identity(TO_API, Resource("Tier", {"name": "t"}))).metadata == {
        "name": "t"
    }
    there.metadata["annotations"][convert.identity_annotation(DEFAULT)] = "damaged"
    assert convert.with_identity(TO_KEYS, there).metadata["uid"] == "other"


def test_only_what_moves_is_copied() -> None:
    documents: dict[Key, Value] = {
        IpamConfigKey(): IpamConfig(),
        HandleKey("vxlan-tunnel-addr-b"): Handle({}),
        AffinityKey("a.etcd", CIDR): Affinity(),
        BlockKey(CIDR): Block(CIDR, None, Ordinals(2), 7),
    }
    kinds = ("IPPool", "Node", "ClusterInformation", "Profile", "WorkloadEndpoint", "HostEndpoint", "Tier")
    documents |= {ResourceKey(kind, "x"): Resource(kind, {"name": "x"}) for kind in kinds}
    policies = ("default.own", "knp.default.copy")
    documents |= {ResourceKey("NetworkPolicy", name, "n"): Resource("NetworkPolicy", {"name": name}) for name in policies}
    assert [*dict(in_order(converted(TO_API, documents)))] == [
        IpamConfigKey(),
        ResourceKey("IPPool", "x"),
        ResourceKey("HostEndpoint", "x"),
        ResourceKey("Tier", "x"),
        ResourceKey("NetworkPolicy", "default.own", "n"),
        HandleKey("vxlan-tunnel-addr-c"),
        BlockKey(CIDR),
        AffinityKey("a", CIDR),
    ]
    assert not convert.moves(NodeClaimKey("a"))


def test_settings_of_nodes_get_the_names_of_their_nodes() -> None:
    """Their programs would not find them otherwise."""

    def moved(form: Form, kind: str, name: str, **spec: str) -> list[tuple[str, str, object]]:
        found = converted(form, {ResourceKey(kind, name): Resource(kind, {"name": name}, dict(spec))})
        resources = ((key, value) for key, value in found.items() if isinstance(value, Resource))
        return [(key.name, value.name, value.spec.get("node")) for key, value in resources if isinstance(key, ResourceKey)]

    for kind in ("FelixConfiguration", "BGPConfiguration"):
        assert moved(TO_API, kind, "node.a.etcd") == [("node.a", "node.a", None)]
        assert moved(TO_KEYS, kind, "node.a") == [("node.a.etcd", "node.a.etcd", None)]
        assert moved(TO_API, kind, "node.unknown") == [("node.unknown", "node.unknown", None)]
        assert moved(TO_API, kind, "a.etcd") == [("a.etcd", "a.etcd", None)]
    for kind in ("HostEndpoint", "BGPPeer"):
        assert moved(TO_API, kind, "node.b", node="b") == [("node.b", "node.b", "c")]
    assert moved(TO_API, "Tier", "node.b", node="b") == [("node.b", "node.b", "b")]


def test_pools_are_disabled_and_other_values_are_not() -> None:
    pool = Resource("IPPool", {"name": "p"}, {"cidr": "10.0.0.0/24"})
    assert convert.disabled(pool) == Resource("IPPool", {"name": "p"}, {"cidr": "10.0.0.0/24", "disabled": True})
    assert pool.spec == {"cidr": "10.0.0.0/24"}
    for value in (Resource("Tier", {"name": "p"}), Handle({})):
        assert convert.disabled(value) is value


@pytest.mark.parametrize(("before", "there", "back"), [("cni,bgp", "cni,bgp,kdd", "cni,bgp"), ("", "kdd", None)])
def test_the_type_of_the_cluster_follows_the_datastore(before: str, there: str, back: str | None) -> None:
    spec = convert.cluster_spec(TO_API, {"clusterGUID": "g", "clusterType": before, "datastoreReady": True})
    assert spec == {"clusterGUID": "g", "clusterType": there, "datastoreReady": False}
    assert convert.cluster_spec(TO_KEYS, spec).get("clusterType") == back
