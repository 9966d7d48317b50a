"""Documents and results of Calico compared with those of svc under the names profile `calico`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svc._core.cidr import Cidr
from svc.cni import results
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.model.ipam import IpamConfig
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey, ResourceKey
from svc.model.kv_codec import Codec
from svc.model.prev_result import parse_prev_result
from svc.model.resource import ordered
from svc.netconf.names_profiles import load_profile

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = load_profile("calico")
CODEC = Codec(NAMES)


def lines(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / file).read_text().splitlines()[1:]]


def document(file: str, key: str) -> str:
    (found,) = [str(line["value"]) for line in lines(file) if line["key"] == key]
    return found


def test_every_kind_of_key_was_captured() -> None:
    """Otherwise the round trips of the codec would not cover every kind."""
    keys = [CODEC.key(line["key"]) for line in lines("etcd-2-add-pod-dual.jsonl")]
    assert {type(key) for key in keys} == {BlockKey, AffinityKey, HandleKey, ResourceKey}
    kinds = {key.kind for key in keys if isinstance(key, ResourceKey)}
    assert kinds == {"ClusterInformation", "IPPool", "IPReservation", "Node", "Profile", "WorkloadEndpoint"}


@pytest.mark.parametrize(
    ("config", "document"),
    [
        (IpamConfig(), b'{"auto_allocate_blocks":true}'),
        (
            IpamConfig(strict_affinity=True, max_blocks_per_host=4, vm_address_persistence="Enabled", cooldown_seconds=60),
            b'{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":4,'
            b'"kubeVirtVMAddressPersistence":"Enabled","ipCooldownSeconds":60}',
        ),
    ],
    ids=["default", "all"],
)
def test_settings_are_spelled_as_calico_spells_them(config: IpamConfig, document: bytes) -> None:
    """Calico mixes snake case and camel case, and omits false."""
    assert CODEC.path(IpamConfigKey()) == "/calico/ipam/v2/config"
    assert CODEC.encode(config) == document
    assert CODEC.decode(IpamConfigKey(), document) == config


def test_endpoint_of_a_container_equals_that_of_calico() -> None:
    """Key and document are equal, except for random values."""
    workload = Workload("c1")
    key = endpoint_key(NAMES, "node1", workload, "eth0")
    captured = document("etcd-1-add-ipv4.jsonl", CODEC.path(key))
    calico_endpoint = json.loads(captured)
    spec = {"ipNetworks": [str(Cidr("10.77.0.128/32"))], "interfaceName": "calic1", "mac": calico_endpoint["spec"]["mac"]}
    own_endpoint = endpoint(NAMES, key, "node1", workload, "eth0", spec=spec, facts=PodFacts(profiles=["net1"]))
    own_endpoint.metadata = ordered(
        own_endpoint.metadata | {name: calico_endpoint["metadata"][name] for name in ("uid", "creationTimestamp")}
    )
    assert CODEC.encode(own_endpoint).decode() == captured


def test_key_of_a_pods_endpoint_equals_that_of_calico() -> None:
    """Dashes of the pod's name are doubled."""
    key = endpoint_key(NAMES, "node1", Workload("c2", "web-0", "default"), "eth0")
    assert document("etcd-2-add-pod-dual.jsonl", CODEC.path(key))


@pytest.mark.parametrize("file", sorted(path.name for path in FIXTURES.glob("result-*.json")))
def test_results_of_calico_are_parsed_and_rendered_unchanged(file: str) -> None:
    """A CHECK or DEL receives such results after a change from Calico to svc."""
    printed = json.loads((FIXTURES / file).read_text())
    result = parse_prev_result(printed, printed["cniVersion"])
    assert results.render(result, printed["cniVersion"]) == printed


def names_in(resource: Any) -> Iterator[str]:
    """Return the names of API groups, labels and annotations."""
    yield resource.get("apiVersion", "")
    metadata = resource["metadata"]
    for field in ("labels", "annotations"):
        yield from metadata.get(field, {})
    if packed := metadata.get("annotations", {}).get(NAMES.metadata_annotation):
        yield from json.loads(packed).get("labels", {})


@pytest.mark.parametrize("file", sorted(path.name for path in FIXTURES.glob("orch-*.jsonl")))
def test_names_of_custom_resources_are_in_the_profile(file: str) -> None:
    """Other domains than those of the profile occur only in annotations of kubectl."""
    known = (
        NAMES.crd_api_version, f"{NAMES.label_prefix}/", f"{NAMES.annotation_prefix}/", f"{NAMES.orch_domain}/",
        "kubectl.kubernetes.io/",
    )  # fmt: skip
    found = {name for line in lines(file) for name in names_in(line) if "/" in name}
    assert NAMES.metadata_annotation in found
    assert [name for name in found if not name.startswith(known)] == []
