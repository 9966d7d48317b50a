"""Manifests of whole releases are applied to a cluster with the controllers of Kubernetes; bad manifests are refused."""

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube, Refused
from harness.polling import eventually
from harness.upgrade_fixtures import WORKLOADS, kubelets, server_with
from harness.upgrade_site import DAEMON_SET, SYSTEM, UpgradeSite, config, container, daemon_set, old, running_site
from svc.datastore.open import open_client
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import NETWORKING, ORCH, OVERLAY, POLICY_V1BETA1, Settings
from svc.deploy.server_apply import apply

__all__ = ["kubelets"]  # a fixture

pytestmark = pytest.mark.server
server = server_with(*WORKLOADS)

Json = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INFORMATION = "/apis/crd.svc.internal/v1/clusterinformations"
POOLS = "/apis/crd.svc.internal/v1/ippools"


@pytest.fixture
def empty(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    """Yield a cluster without svc."""
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    yield from running_site(server, tmp_path)
    for definition in server.call("GET", CRDS)["items"]:
        with suppress(Refused):  # a test has deleted it
            server.call("DELETE", f"{CRDS}/{definition['metadata']['name']}")
        spec = definition["spec"]
        server.await_gone(f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}")


@pytest.fixture
def site(empty: UpgradeSite) -> UpgradeSite:
    """Return a cluster with a small former release."""
    empty.install(old())
    return empty


def release(version: str, flavour: str = NETWORKING, **more: Any) -> list[Json]:
    return objects(Settings(flavour, ORCH, f"svc:{version}", policy_api=POLICY_V1BETA1, **more))


def former(site: UpgradeSite, documents: Sequence[Json]) -> None:
    """Apply documents as `kubectl apply --server-side` does."""
    with closing(open_client({"kubeconfig": str(site.kubeconfig)})) as client:
        for _ in apply(client, documents, "kubectl"):
            pass


def blocked(site: UpgradeSite, documents: Sequence[Json], *arguments: str, status: int = 3) -> str:
    """Apply a manifest that is refused before the first write, and return why. The plan says the same."""
    before = site.everything()
    refused = site.run("apply", *arguments, documents=documents)
    assert refused.exit_code == status, refused.output
    assert site.everything() == before
    assert site.run("plan", *arguments, documents=documents).exit_code == status
    return refused.stderr


def test_whole_release(empty: UpgradeSite) -> None:
    """Definitions, rights, configuration and workloads go to the next release, and back."""
    before_release, newer = release("0.1.0"), release("0.1.1")
    former(empty, before_release)
    body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
    empty.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0", "datastoreReady": True}})
    before = empty.state(before_release)
    planned = empty.run("plan", "-o", "json", documents=newer)
    assert planned.exit_code == 0, planned.output
    (plan,) = json.loads(planned.stdout)
    assert [each["name"] for each in plan["steps"] if each["state"] == "to do"] == [
        f"DaemonSet/{SYSTEM}/svc-node", f"Deployment/{SYSTEM}/svc-controllers",
    ]  # fmt: skip
    assert plan["found"]["flavour"] == NETWORKING
    done = empty.run("apply", documents=newer)
    assert done.exit_code == 0, done.output
    found = empty.kube.call("GET", DAEMON_SET)
    assert {each["image"] for each in found["spec"]["template"]["spec"]["containers"]} == {"svc:0.1.1"}
    again = empty.run("apply", documents=newer)
    assert again.stdout == "nothing to do\n", again.output
    assert empty.run("undo").exit_code == 0
    assert empty.state(before_release) == before


def test_a_present_pool_is_not_changed(empty: UpgradeSite) -> None:
    """Its settings belong to the administrator. One that does not exist is created."""
    former(empty, release("0.1.0", pools=("10.244.0.0/16",)))
    body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
    empty.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0", "datastoreReady": True}})
    changes = {"spec": {"natOutgoing": False, "vxlanMode": None}}
    empty.kube.call("PATCH", f"{POOLS}/default-ipv4-ippool", changes, "application/merge-patch+json")
    before = empty.kube.call("GET", f"{POOLS}/default-ipv4-ippool")
    done = empty.run("apply", documents=release("0.1.1", pools=("10.244.0.0/16", "fd00::/48")))
    assert done.exit_code == 0, done.output
    assert empty.kube.call("GET", f"{POOLS}/default-ipv4-ippool") == before
    assert empty.kube.call("GET", f"{POOLS}/default-ipv6-ippool")["spec"]["natOutgoing"] is True


def definition(**size: int) -> Json:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", **size}}}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.tests.example"},
        "spec": {
            "group": "tests.example",
            "scope": "Cluster",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def thing(size: int) -> Json:
    return {"apiVersion": "tests.example/v1", "kind": "Thing", "metadata": {"name": "one"}, "spec": {"size": size}}


def test_kind_and_namespace_that_the_manifest_brings(site: UpgradeSite) -> None:
    """The plan cannot check such objects, and says so. Undoing keeps a definition while it has objects of others."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "brought"}}
    inside = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "svc-inside", "namespace": "brought"}}
    documents = [thing(1), inside, definition(), space, *old()]
    planned = site.run("plan", documents=documents)
    assert planned.exit_code == 0, planned.output
    assert "Thing/one: unverified" in planned.stdout
    assert "ConfigMap/brought/svc-inside: unverified" in planned.stdout
    done = site.run("apply", documents=documents)
    assert done.exit_code == 0, done.output
    assert site.kube.call("GET", "/apis/tests.example/v1/things/one")["spec"] == {"size": 1}
    site.succeeds("undo")
    assert site.get("/apis/tests.example/v1/things/one") is None
    assert site.get("/api/v1/namespaces/brought/configmaps/svc-inside") is None
    site.kube.uproot("namespaces/brought")


def test_definition_that_refuses_present_data(site: UpgradeSite) -> None:
    former(site, [definition()])
    site.kube.call("POST", "/apis/tests.example/v1/things", thing(5))
    documents = [definition(maximum=3), *old()]
    refused = site.run("apply", documents=documents)
    assert refused.exit_code == 3, refused.output
    assert "Thing/one is refused by the new definition" in refused.stderr
    undone = site.run("undo")
    assert undone.exit_code == 0, undone.output
    assert site.kube.call("GET", "/apis/tests.example/v1/things/one")["spec"] == {"size": 5}


def test_manifest_of_another_flavour(site: UpgradeSite) -> None:
    other = [config(), daemon_set("svc:0.1.1", USE_POD_CIDR="true", CLUSTER_TYPE=f"k8s,{OVERLAY}")]
    assert "flavour networking, and the manifest is of flavour overlay" in blocked(site, other)


def test_selector_cannot_be_changed(site: UpgradeSite) -> None:
    other = daemon_set("svc:0.1.1")
    labels = {"app": "svc-node"}
    other["spec"]["selector"]["matchLabels"] = other["spec"]["template"]["metadata"]["labels"] = labels
    reason = blocked(site, [other])
    assert "422" in reason
    assert "field is immutable" in reason


def test_manifest_of_an_older_release(empty: UpgradeSite) -> None:
    empty.install([daemon_set("svc:0.1.5")])
    assert "older than 0.1.5 of the cluster" in blocked(empty, [daemon_set("svc:0.1.4")])


def test_release_below_the_floor(empty: UpgradeSite) -> None:
    empty.install([daemon_set("svc:0.0.9")])
    assert "upgrades begin at 0.1" in blocked(empty, [daemon_set("svc:0.1.1")])


def test_manifest_of_another_version_than_wanted(site: UpgradeSite) -> None:
    documents = [daemon_set("svc:0.2.0")]
    assert "does not match ^v?0\\.1\\." in blocked(site, documents)
    assert site.run("plan", "--to", "v0.2.0", documents=documents).exit_code == 0


def test_cluster_without_svc(empty: UpgradeSite) -> None:
    assert "svc was not installed by a manifest" in blocked(empty, [daemon_set("svc:0.1.1")])


def test_kind_that_is_not_served(site: UpgradeSite) -> None:
    """All kinds are looked up before the first write."""
    reason = blocked(site, [daemon_set("svc:0.1.1"), thing(1)])
    assert "Thing/one: the API server does not serve Thing of tests.example/v1" in reason


def test_missing_and_terminating_namespaces(site: UpgradeSite) -> None:
    inside = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inside", "namespace": "ending"}}
    documents = [daemon_set("svc:0.1.1"), inside]
    assert "the namespace ending of ConfigMap/ending/inside does not exist" in blocked(site, documents)
    site.kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": "ending"}, "spec": {"finalizers": ["tests/kept"]}})
    site.kube.call("DELETE", "/api/v1/namespaces/ending")
    try:
        assert "the namespace ending of ConfigMap/ending/inside is terminating" in blocked(site, documents)
    finally:
        site.kube.uproot("namespaces/ending")


def test_locked_datastore(site: UpgradeSite) -> None:
    site.kube.apply([each for each in release("0.1.0") if each["metadata"]["name"].startswith("clusterinformations")])
    body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
    site.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0", "datastoreReady": False}})
    assert "the datastore is locked" in blocked(site, [daemon_set("svc:0.1.1")])


def test_cluster_with_another_version_at_the_end(site: UpgradeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent notes its version here, so the cluster keeps the old one."""
    monkeypatch.setattr("svc.upgrade.engine.SETTLE_SECONDS", 0.2)
    site.kube.apply([each for each in release("0.1.0") if each["metadata"]["name"].startswith("clusterinformations")])
    body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
    site.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0"}})
    documents = [daemon_set("svc:0.2.0")]
    failed = site.run("apply", "--to", "v0.2.0", documents=documents)
    assert failed.exit_code == 6, failed.output
    assert "version '0.1.0', which does not match ^v?0\\.2\\." in failed.stderr
    change = {"spec": {"svcVersion": "0.2.0"}}
    site.kube.call("PATCH", f"{INFORMATION}/default", change, "application/merge-patch+json")
    assert site.run("apply", "--to", "v0.2.0", documents=documents).exit_code == 0


def test_etcd_is_another_procedure(site: UpgradeSite) -> None:
    text = json.dumps({"plugins": [{"datastore_type": "etcdv3"}]})
    body = {"metadata": {"name": "cni-config", "namespace": SYSTEM}, "data": {"config": text}}
    site.kube.call("POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", body)
    try:
        documents = [daemon_set("svc:0.1.1")]
        assert "the datastore of the cluster is etcd" in blocked(site, documents, "--procedure", "manifests")
        assert "give the manifest for it" in blocked(site, documents)
    finally:
        site.kube.uproot(f"configmaps/{SYSTEM}/cni-config")


def test_wrong_digest_and_broken_document(site: UpgradeSite, tmp_path: Path) -> None:
    """Both are wrong use: nothing is asked of the cluster."""
    right = hashlib.sha256(site.manifest([daemon_set("svc:0.1.1")]).read_bytes()).hexdigest()
    documents = [daemon_set("svc:0.1.1")]
    assert site.run("plan", "--sha256", right, documents=documents).exit_code == 0
    assert "has the digest" in blocked(site, documents, "--sha256", "0" * 64, status=2)
    assert "is not a digest" in blocked(site, documents, "--sha256", "short", status=2)
    file = tmp_path / "broken.yaml"
    file.write_text(f"{json.dumps(documents[0])}\n---\nkind: [")
    words = ["--state-dir", str(site.state_dir), "upgrade", "apply", "--kubeconfig", str(site.kubeconfig)]
    refused = site.call(*words, "--manifest", str(file))
    assert refused.exit_code == 2
    assert "neither YAML nor JSON" in refused.stderr
    refused = site.call(*words, "--manifest", "http://127.0.0.1:1/x")
    assert refused.exit_code == 2
    assert "without its digest" in refused.stderr


def test_older_svcctl_on_the_path(site: UpgradeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upgrade is complete when it is replaced."""
    monkeypatch.setattr("svc.upgrade.engine.SETTLE_SECONDS", 0.2)
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "svcctl"
    program.write_text("#!/bin/sh\necho svcctl 0.0.9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    failed = site.run("apply")
    assert failed.exit_code == 6, failed.output
    assert f"{program} is svcctl 0.0.9" in failed.stderr
    program.unlink()
    site.succeeds("apply")


def test_budget_that_allows_no_disruption_is_named(site: UpgradeSite) -> None:
    labels = {"app.kubernetes.io/name": "svc-node"}
    spec = {"minAvailable": 5, "selector": {"matchLabels": labels}}
    body = {"metadata": {"name": "strict", "namespace": SYSTEM}, "spec": spec}
    path = f"/apis/policy/v1beta1/namespaces/{SYSTEM}/poddisruptionbudgets"
    site.kube.call("POST", path, body)
    sentence = f"PodDisruptionBudget/{SYSTEM}/strict allows no disruption of its pods"
    eventually(lambda: site.run("plan").stdout, lambda text: sentence in text)


def test_fields_of_a_former_release_go(site: UpgradeSite) -> None:
    """This holds for an item of a list, and for a container with all that is in it."""
    first = daemon_set("svc:0.1.1", LEVEL="info")
    first["spec"]["template"]["spec"]["containers"].append({"name": "second", "image": "svc:0.1.1"})
    assert site.run("apply", documents=[first]).exit_code == 0
    second = copy.deepcopy(first)
    second["spec"]["template"]["spec"]["containers"] = [container("svc:0.1.2")]
    done = site.run("apply", documents=[second])
    assert done.exit_code == 0, done.output
    (left,) = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]["containers"]
    assert "env" not in left


def test_manifest_without_routes_needs_consent(site: UpgradeSite) -> None:
    """The container of svc-routes does not go unnoticed."""
    former = daemon_set("svc:0.1.1")
    former["spec"]["template"]["spec"]["containers"].append({"name": "routes", "image": "svc:0.1.1", "command": ["svc-routes"]})
    assert site.run("apply", documents=[former]).exit_code == 0
    newer = [daemon_set("svc:0.1.2")]
    asked = site.run("apply", documents=newer)
    assert asked.exit_code == 4, asked.output
    assert "svc-routes goes, because the manifest does not have it" in asked.stderr
    assert "--ack DaemonSet/kube-system/svc-node" in asked.stderr
    done = site.run("apply", "--ack", f"DaemonSet/{SYSTEM}/svc-node", documents=newer)
    assert done.exit_code == 0, done.output


def test_manifest_of_the_operator(site: UpgradeSite) -> None:
    documents = [*objects(Settings("operator", ORCH, "svc:0.1.1", policy_api=POLICY_V1BETA1))]
    assert "the manifest is of flavour operator" in blocked(site, documents)


POLICY_KIND = "/apis/crd.svc.internal/v1/globalnetworkpolicies"


def policy(name: str) -> Json:
    head = {"apiVersion": "crd.svc.internal/v1", "kind": "GlobalNetworkPolicy", "metadata": {"name": name}}
    return head | {"spec": {"selector": "has(host-endpoint-upgrade)", "types": ["Ingress"], "ingress": [{"action": "Allow"}]}}


def policies_of(site: UpgradeSite, *names: str) -> str:
    return str(site.manifest([policy(name) for name in names], "policies.json"))


@pytest.fixture
def with_policy(site: UpgradeSite) -> UpgradeSite:
    """Return a cluster with the policy that lets all through while it is upgraded."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    kind = definition()
    kind["metadata"]["name"] = "globalnetworkpolicies.crd.svc.internal"
    kind["spec"]["group"] = "crd.svc.internal"
    plural, name = "globalnetworkpolicies", "GlobalNetworkPolicy"
    kind["spec"]["names"] = {"plural": plural, "singular": name.lower(), "kind": name, "listKind": f"{name}List"}
    kind["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    site.kube.apply([kind])
    site.kube.call("POST", POLICY_KIND, policy("allow-all-upgrade"))
    return site


def names_of_policies(site: UpgradeSite) -> set[str]:
    return {each["metadata"]["name"] for each in site.kube.call("GET", POLICY_KIND)["items"]}


def test_policy_of_upgrades_ends_with_consent(with_policy: UpgradeSite) -> None:
    """It is deleted last, after those that replace it were applied. Undoing brings it back."""
    site, documents = with_policy, [daemon_set("svc:0.1.1")]
    given = ("--policies", policies_of(with_policy, "mine"))
    asked = site.run("apply", *given, documents=documents)
    assert asked.exit_code == 4, asked.output
    assert "--ack allow-all-upgrade" in asked.stderr
    assert names_of_policies(site) == {"allow-all-upgrade"}
    done = site.run("apply", *given, "--ack", "allow-all-upgrade", documents=documents)
    assert done.exit_code == 0, done.output
    assert names_of_policies(site) == {"mine"}
    again = site.run("apply", *given, documents=documents)
    assert again.stdout == "nothing to do\n", again.output
    undone = site.run("undo")
    assert undone.exit_code == 0, undone.output
    assert names_of_policies(site) == {"allow-all-upgrade"}


def test_policy_of_upgrades_stays_without_its_successors(with_policy: UpgradeSite) -> None:
    site = with_policy
    assert site.run("apply", documents=[daemon_set("svc:0.1.1")]).exit_code == 0
    assert names_of_policies(site) == {"allow-all-upgrade"}
    for names in ((), ("allow-all-upgrade",)):
        refused = site.run("apply", "--policies", policies_of(site, *names), documents=[daemon_set("svc:0.1.1")])
        assert refused.exit_code == 2, refused.output
