"""Layout of a key-value store: documents of Calico are read, and written back byte for byte."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc._core.cidr import Cidr
from svc.model.ipam import Affinity, Handle, IpamConfig
from svc.model.keys import (
    AffinityKey,
    AffinityQuery,
    BlockKey,
    BlockQuery,
    HandleKey,
    HandleQuery,
    IpamConfigKey,
    Key,
    LegacyHostKey,
    NodeClaimKey,
    NodeClaimQuery,
    NodeFenceKey,
    Query,
    ResourceKey,
    ResourceQuery,
)
from svc.model.kv_codec import Codec, matches
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

CALICO = load_profile("calico")
FIXTURES = Path(__file__).parent / "fixtures"


def stored() -> Iterator[tuple[str, str]]:
    """Return every path and document of every captured state."""
    for file in sorted(FIXTURES.glob("etcd-*.jsonl")):
        for line in file.read_text().splitlines()[1:]:
            item = json.loads(line)
            yield item["key"], item["value"]


CAPTURED = sorted(set(stored()))

KEYS: dict[str, Key] = {
    "ipam/v2/assignment/ipv4/block/10.65.0.64-26": BlockKey(Cidr("10.65.0.64/26")),
    "ipam/v2/assignment/ipv6/block/fd00:10:244::40-122": BlockKey(Cidr("fd00:10:244::40/122")),
    "ipam/v2/host/node1/ipv4/block/10.65.0.64-26": AffinityKey("node1", Cidr("10.65.0.64/26")),
    "ipam/v2/host/node1/ipv6/block/fd00::-122": AffinityKey("node1", Cidr("fd00::/122")),
    "ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.0-32": AffinityKey("load-balancer", Cidr("10.0.0.0/32"), "virtual"),
    "ipam/v2/handle/net1.C1": HandleKey("net1.C1"),
    "ipam/v2/handle/odd/handle": HandleKey("odd/handle"),
    "ipam/v2/config": IpamConfigKey(),
    "svc/v1/claims/node1/owner": NodeClaimKey("node1"),
    "svc/v1/claims/node1/fence": NodeFenceKey("node1"),
    "resources/v3/projectcalico.org/ippools/pool4": ResourceKey("IPPool", "pool4"),
    "resources/v3/projectcalico.org/nodes/node1": ResourceKey("Node", "node1"),
    "resources/v3/projectcalico.org/workloadendpoints/default/node1-k8s-web--0-eth0": ResourceKey(
        "WorkloadEndpoint", "node1-k8s-web--0-eth0", "default"
    ),
    "resources/v3/projectcalico.org/networkpolicies/default/knp.default.web": ResourceKey(
        "NetworkPolicy", "knp.default.web", "default"
    ),
}

FOREIGN = [
    "",
    "/",
    "/calico",
    "/other/ipam/v2/config",
    "/calico/ipam/v2/",
    "/calico/ipam/v2/handle/",
    "/calico/ipam/v2/host/node1",
    "/calico/ipam/v2/host//ipv4/block/10.65.0.64-26",
    "/calico/ipam/v2/robot/node1/ipv4/block/10.65.0.64-26",
    "/calico/ipam/v2/assignment/ipv6/block/10.65.0.64-26",
    "/calico/ipam/v2/assignment/ipv4/block/10.65.0.65-26",
    "/calico/ipam/v2/assignment/ipv4/block/10.65.0.64",
    "/calico/ipam/v2/assignment/ipv6/block/FD00::-122",
    "/calico/ipam/v2/assignment/ipv4/block/",
    "/calico/svc/v1/claims/node1",
    "/calico/svc/v1/claims//owner",
    "/calico/svc/v1/claims/node1/other",
    "/calico/resources/v3/projectcalico.org/",
    "/calico/resources/v3/projectcalico.org/robots/one",
    "/calico/resources/v3/projectcalico.org/ippools/",
    "/calico/resources/v3/projectcalico.org/ippools/ns/pool",
    "/calico/resources/v3/projectcalico.org/workloadendpoints/alone",
    "/calico/resources/v3/projectcalico.org/workloadendpoints//name",
    "/calico/resources/v2/projectcalico.org/ippools/pool4",
    "/calico/v1/host/node1/workload/k8s/default%2fweb/endpoint/eth0",
]

QUERIES: list[Query] = [
    BlockQuery(),
    BlockQuery(4),
    BlockQuery(6),
    AffinityQuery(),
    AffinityQuery("node1"),
    AffinityQuery("node1", 4),
    AffinityQuery(version=6),
    AffinityQuery(kind="virtual"),
    HandleQuery(),
    NodeClaimQuery("node1"),
    ResourceQuery("IPPool"),
    ResourceQuery("IPPool", prefix="pool"),
    ResourceQuery("WorkloadEndpoint"),
    ResourceQuery("NetworkPolicy"),
    ResourceQuery("NetworkPolicy", "default", "knp.default."),
    ResourceQuery("WorkloadEndpoint", "default", "node1-k8s-"),
    ResourceQuery("WorkloadEndpoint", prefix="node1-"),
]


@pytest.mark.parametrize(("path", "document"), CAPTURED, ids=[path.rpartition("/")[2] for path, _ in CAPTURED])
def test_captured_documents_are_written_back_byte_for_byte(path: str, document: str) -> None:
    """A document that was read is written unchanged."""
    codec = Codec(CALICO)
    key = codec.key(path)
    assert key is not None
    assert codec.path(key) == path
    assert codec.encode(codec.decode(key, document.encode())).decode() == document


@pytest.mark.parametrize("tail", KEYS)
def test_paths_and_keys_are_inverse(tail: str) -> None:
    """This holds for every kind of key."""
    codec = Codec(CALICO)
    assert codec.path(KEYS[tail]) == f"/calico/{tail}"
    assert codec.key(f"/calico/{tail}") == KEYS[tail]


def test_legacy_key_of_a_host_has_a_path() -> None:
    """svc only deletes the key, because no program reads it."""
    assert Codec(CALICO).path(LegacyHostKey("node1")) == "/calico/ipam/v2/host/node1"


@pytest.mark.parametrize("path", FOREIGN)
def test_foreign_paths_are_not_keys(path: str) -> None:
    """They have another root, another layout, or a spelling that svc does not write."""
    assert Codec(CALICO).key(path) is None


def test_names_replace_root_and_group() -> None:
    """Only the names in the layout differ between deployments."""
    codec = Codec(DEFAULT)
    assert codec.path(IpamConfigKey()) == "/svc/ipam/v2/config"
    assert codec.path(ResourceKey("Node", "n")) == "/svc/resources/v3/svc.internal/nodes/n"
    assert b'"apiVersion":"svc.internal/v3"' in codec.encode(Resource("Node", {"name": "n"}))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_results_start_with_the_prefix(query: Query) -> None:
    """Every key that matches a query is below its prefix."""
    codec = Codec(CALICO)
    results = [key for key in KEYS.values() if matches(query, key)]
    assert all(codec.path(key).startswith(codec.prefix(query)) for key in results)


@pytest.mark.parametrize(
    ("query", "tails"),
    [
        (BlockQuery(), ["10.65.0.64-26", "fd00:10:244::40-122"]),
        (BlockQuery(6), ["fd00:10:244::40-122"]),
        (AffinityQuery(), ["10.65.0.64-26", "fd00::-122"]),
        (AffinityQuery("node1", 4), ["10.65.0.64-26"]),
        (AffinityQuery("node"), []),
        (AffinityQuery(version=6), ["fd00::-122"]),
        (AffinityQuery(kind="virtual"), ["10.0.0.0-32"]),
        (HandleQuery(), ["handle", "net1.C1"]),
        (ResourceQuery("IPPool", prefix="pool"), ["pool4"]),
        (ResourceQuery("IPPool", prefix="pool5"), []),
        (ResourceQuery("WorkloadEndpoint", "default", "node1-k8s-"), ["node1-k8s-web--0-eth0"]),
        (ResourceQuery("WorkloadEndpoint", prefix="node1-"), ["node1-k8s-web--0-eth0"]),
        (ResourceQuery("WorkloadEndpoint", "other"), []),
    ],
    ids=str,
)
def test_queries_match_only_their_keys(query: Query, tails: list[str]) -> None:
    """The table has the last part of the path of each matching key."""
    assert sorted(tail.rpartition("/")[2] for tail, key in KEYS.items() if matches(query, key)) == sorted(tails)


def test_empty_affinity_is_confirmed() -> None:
    """Old versions stored no document."""
    assert Codec(DEFAULT).decode(AffinityKey("n", Cidr("10.0.0.0/26")), b"") == Affinity()


def test_false_settings_are_omitted() -> None:
    """An empty document therefore permits nothing."""
    codec = Codec(DEFAULT)
    assert codec.encode(IpamConfig(auto_allocate_blocks=False)) == b"{}"
    assert codec.decode(IpamConfigKey(), b"{}") == IpamConfig(auto_allocate_blocks=False)


def test_handle_blocks_are_sorted() -> None:
    """Maps are written with sorted keys."""
    assert Codec(DEFAULT).encode(Handle({"b": 2, "a": 1})) == b'{"block":{"a":1,"b":2},"deleted":false}'


def test_unknown_fields_of_resources_are_kept() -> None:
    """A newer version or another program may have written them."""
    key = ResourceKey("IPPool", "p")
    document = (
        b'{"kind":"IPPool","apiVersion":"svc.internal/v3","metadata":{"name":"p","finalizers":["x"]},'
        b'"spec":{"cidr":"10.0.0.0/24","novel":{"a":[1]}},"status":{"conditions":[]}}'
    )
    codec = Codec(DEFAULT)
    assert codec.encode(codec.decode(key, document)) == document
