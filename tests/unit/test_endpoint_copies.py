"""What follows from a pod is copied to its endpoints, exactly as an ADD of the pod writes it, and nothing else changes."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from svc.controllers import assembly
from svc.controllers.copies.endpoint_copies import (
    copied,
    digest_of_endpoint,
    digest_of_pod,
    follows_pod,
    states_another_container,
)
from svc.controllers.settings import read
from svc.model.endpoint import Workload, endpoint, endpoint_key
from svc.model.pod_endpoint import policy_facts
from svc.model.resource import Resource
from svc.names import DEFAULT

Json = dict[str, Any]

WORDS = some.sampled_from(["app", "web", "x/y", "svc.internal/namespace", "", "é"])
PODS = some.builds(
    lambda labels, account, notes, ports: {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "labels": labels, "annotations": notes},
        "spec": {"nodeName": "n1", "serviceAccountName": account, "containers": [{"ports": ports}]},
    },
    some.none() | some.dictionaries(WORDS, WORDS),
    some.sampled_from(["", "default", "a" * 62, "a" * 63]),
    some.dictionaries(some.just("cni.svc.internal/floatingIPs"), some.just('["192.0.2.1"]')),
    some.lists(some.builds(lambda port: {"name": "p", "containerPort": port}, some.integers(1, 9)), max_size=1),
)


def pod_with(**labels: str) -> Json:
    return {"metadata": {"name": "web", "namespace": "shop", "labels": labels}, "spec": {"serviceAccountName": "s"}}


def added(pod: Json, ifname: str = "eth0") -> Resource:
    """Return the endpoint that an ADD of the pod writes."""
    workload = Workload("c1", "web", "shop")
    spec = {"ipNetworks": ["10.0.0.1/32"], "interfaceName": "svc0", "mac": "02:00:00:00:00:01"}
    key = endpoint_key(DEFAULT, "n1", workload, ifname)
    return endpoint(DEFAULT, key, "n1", workload, ifname, spec=spec, facts=policy_facts(DEFAULT, pod))


@given(PODS, PODS)
def test_copy_is_what_an_add_would_write(before: Json, now: Json) -> None:
    stored, wanted = added(before), added(now)
    untouched = deepcopy(stored.to_json(DEFAULT.api_version))
    found = copied(DEFAULT, now, stored)
    for name in ("serviceAccountName", "profiles"):
        assert found.spec.get(name) == wanted.spec.get(name)
    assert found.metadata["labels"] == wanted.metadata["labels"]
    rest = {name: value for name, value in found.spec.items() if name not in ("serviceAccountName", "profiles")}
    assert rest == {name: value for name, value in stored.spec.items() if name not in ("serviceAccountName", "profiles")}
    assert {**found.metadata, "labels": 0} == {**stored.metadata, "labels": 0}
    assert stored.to_json(DEFAULT.api_version) == untouched
    assert digest_of_endpoint(DEFAULT, found) == digest_of_pod(DEFAULT, now)
    assert copied(DEFAULT, now, found) is found


@given(PODS, PODS)
def test_digests_differ_exactly_if_the_copy_does(before: Json, now: Json) -> None:
    stored = added(before)
    is_same = digest_of_endpoint(DEFAULT, stored) == digest_of_pod(DEFAULT, now)
    assert is_same == (copied(DEFAULT, now, stored).to_json(DEFAULT.api_version) == stored.to_json(DEFAULT.api_version))


def test_digests_are_short() -> None:
    assert 8 <= len(digest_of_pod(DEFAULT, pod_with())) <= 16


def test_profiles_of_networks_that_share_the_interface_stay() -> None:
    stored = added(pod_with(app="a"))
    stored.spec["profiles"] += ["other-network", "ksa.shop.gone"]
    found = copied(DEFAULT, pod_with(app="b"), stored)
    assert found.spec["profiles"] == ["kns.shop", "ksa.shop.s", "other-network"]


@pytest.mark.parametrize(
    "change",
    [{"orchestrator": "cni"}, {"pod": ""}, {"profiles": ["pods"]}, {"profiles": None}, {"profiles": ["kns.other"]}],
)
def test_endpoints_without_properties_of_a_pod_do_not_follow_one(change: Json) -> None:
    """A network without policy gives its endpoints labels and profiles that do not come from the pod."""
    stored = added(pod_with())
    assert follows_pod(DEFAULT, stored)
    stored.spec.update(change)
    assert not follows_pod(DEFAULT, stored)


@pytest.mark.parametrize(
    ("ifname", "notes", "another"),
    [
        ("eth0", {}, False),
        ("eth0", {"cni.svc.internal/containerID": "c1"}, False),
        ("eth0", {"cni.svc.internal/containerID": "c2"}, True),
        ("net1", {"cni.svc.internal/containerID": "c2"}, False),
        ("net1", {"cni.svc.internal/containerID.net1": "c2"}, True),
    ],
)
def test_containers_are_compared_where_both_state_one(ifname: str, notes: Json, another: bool) -> None:
    pod = pod_with()
    pod["metadata"]["annotations"] = notes
    stored = added(pod, ifname)
    assert states_another_container(DEFAULT, pod, stored) == another
    del stored.spec["containerID"]
    assert not states_another_container(DEFAULT, pod, stored)


def test_controller_is_idle_if_endpoints_are_read_from_pods(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "svc.controllers")
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "DATASTORE_TYPE": "orch", "ENABLED_CONTROLLERS": "workloadendpoint"}
    settings = read(environment, DEFAULT, None)
    assert assembly.assemble(settings, None) == []  # type: ignore[arg-type]
    assert "controller workloadendpoint is idle" in caplog.text
