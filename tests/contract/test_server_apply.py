"""Server-side apply of deployments on a real API server with workloads: what it refuses, and that repeats change nothing."""

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.deployments import manifests, remove
from harness.kube import ADMIN_TOKEN, Kube, running
from harness.upgrade_faults import Killer, killing
from svc.datastore.api import StoreError
from svc.datastore.open import open_client
from svc.datastore.orch.client import Client
from svc.deploy.discovery import Discovery
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import (
    ETCD,
    NETWORKING,
    OPERATOR,
    ORCH,
    OVERLAY,
    POLICY_ONLY,
    POLICY_V1,
    POLICY_V1BETA1,
    WITH_RULES,
    Settings,
)
from svc.deploy.server_apply import DEFINITION, Applied, apply, describe, in_order
from svc.model.errors import CallerError

pytestmark = pytest.mark.server

Json = dict[str, Any]

CONFIG: Json = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "namespace": "default"}, "data": {"a": "b"},
}  # fmt: skip
PAIRS = [(NETWORKING, ORCH), (OVERLAY, ORCH), (POLICY_ONLY, ORCH), (OPERATOR, ORCH), (NETWORKING, ETCD), (OVERLAY, ETCD)]


def deployment(flavour: str, datastore: str, **options: Any) -> Settings:
    of_etcd: Json = {"etcd_endpoints": "https://10.0.0.1:2379", "etcd_tls": True} if datastore == ETCD else {}
    return Settings(flavour, datastore, "svc:1", **{"policy_api": POLICY_V1BETA1, **of_etcd, **options})


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("workloads"), has_workloads=True) as server:
        yield server


@pytest.fixture
def client(workloads: Kube, tmp_path: Path) -> Iterator[Client]:
    with closing(open_client({"kubeconfig": str(workloads.kubeconfig(tmp_path / "admin"))})) as made:
        yield made
    remove(workloads)


def exists(client: Client, document: Json) -> Json | None:
    found = Discovery(client).find(document["apiVersion"], document["kind"])
    if found is None:
        return None
    metadata = document["metadata"]
    return client.get_if_served(found.path(document["apiVersion"], metadata["name"], metadata.get("namespace", "")))


def until_failure(client: Client, documents: list[Json]) -> tuple[list[str], str]:
    """Return what was applied before a failure, and its message."""
    done: list[str] = []
    try:
        done.extend(str(each) for each in apply(client, documents))
    except StoreError as error:
        return done, error.msg
    return done, ""


def generations(applied: list[Applied]) -> dict[str, int]:
    """Return the generation of each object that has one."""
    found = {str(each): (each.stored or {})["metadata"].get("generation") for each in applied}
    return {name: number for name, number in found.items() if number is not None}


def without_volatile(stored: Json) -> Json:
    ignored = ("managedFields", "resourceVersion")
    return stored | {"metadata": {name: value for name, value in stored["metadata"].items() if name not in ignored}}


@pytest.mark.parametrize(
    ("flavour", "store", "namespace"),
    [*((*pair, "kube-system") for pair in PAIRS), (NETWORKING, ORCH, "net"), (OVERLAY, ETCD, "net")],
)
def test_each_flavour_is_valid_applied_and_stable(client: Client, flavour: str, store: str, namespace: str) -> None:
    """A dry run changes nothing. What it cannot check is said. After an apply, a second one changes no generation."""
    documents = objects(deployment(flavour, store, namespace=namespace))
    rehearsed = list(apply(client, documents, dry_run=True))
    assert [str(each) for each in rehearsed] == [describe(each) for each in documents]
    unchecked = {each.namespace for each in rehearsed if each.stored is None}
    assert unchecked == ({"net"} if namespace == "net" else set())
    assert [describe(each) for each in documents if exists(client, each)] == []
    first = list(apply(client, documents))
    assert all(exists(client, each) for each in documents)
    checked = list(apply(client, documents, dry_run=True))
    assert all(each.stored for each in checked)
    second = list(apply(client, documents))
    assert generations(second) == generations(first)
    assert f"DaemonSet {namespace}/svc-node" in generations(first)
    for before, after in zip(checked, second, strict=True):
        assert without_volatile(before.stored or {}) == without_volatile(after.stored or {})


def test_definitions_and_their_objects_come_in_one_apply(client: Client) -> None:
    """The kind of a pool is not served yet. The order of the documents does not matter."""
    documents = objects(deployment(NETWORKING, ORCH, pools=("10.244.0.0/16", "fd00::/48")))
    rehearsed = list(apply(client, documents, dry_run=True))
    assert [str(each) for each in rehearsed if each.stored is None] == [
        "IPPool default-ipv4-ippool", "IPPool default-ipv6-ippool",
    ]  # fmt: skip
    applied = list(apply(client, [*reversed(documents)]))
    assert [each.kind for each in applied[:2]] == [DEFINITION, DEFINITION]
    pools = [each.stored for each in applied if each.kind == "IPPool"]
    assert sorted(pool["spec"]["cidr"] for pool in pools if pool) == ["10.244.0.0/16", "fd00::/48"]


def test_unserved_kind_is_refused_before_the_first_write(client: Client) -> None:
    """The server of version 1.20 has no `policy/v1`. The error names kind and group."""
    documents = objects(deployment(NETWORKING, ORCH, policy_api=POLICY_V1))
    for dry_run in (True, False):
        with pytest.raises(StoreError, match=r"does not serve PodDisruptionBudget of policy/v1") as refusal:
            list(apply(client, documents, dry_run=dry_run))
        assert "nothing was applied" in refusal.value.msg
    assert [describe(each) for each in documents if exists(client, each)] == []


def test_missing_namespace_is_refused_before_the_first_write(client: Client) -> None:
    documents = [each for each in objects(deployment(NETWORKING, ORCH, namespace="net")) if each["kind"] != "Namespace"]
    with pytest.raises(StoreError, match="the namespace net of ServiceAccount net/svc-cni-plugin does not exist"):
        list(apply(client, documents))
    assert [describe(each) for each in documents if each["kind"] == DEFINITION and exists(client, each)] == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"metadata": {"name": "made"}}, "ConfigMap made: metadata.namespace is missing"),
        ({"metadata": {"namespace": "default"}}, "ConfigMap default/without name: metadata.name is None"),
        ({"kind": None}, "kind is None"),
        ({"apiVersion": 1}, "apiVersion is 1"),
        ({"kind": "Node"}, "metadata.namespace is 'default', but no namespace has objects of this kind"),
    ],
)
def test_document_without_a_place_is_refused(client: Client, change: Json, error: str) -> None:
    with pytest.raises(CallerError) as refusal:
        list(apply(client, [CONFIG | {"metadata": {"name": "other", "namespace": "default"}}, CONFIG | change]))
    assert error in refusal.value.msg
    assert client.get_if_served("/api/v1/namespaces/default/configmaps/other") is None


def test_object_is_given_once(client: Client) -> None:
    with pytest.raises(CallerError, match="ConfigMap default/made is given twice"):
        list(apply(client, [CONFIG, CONFIG]))


def test_failed_write_names_its_object_and_can_be_repeated(client: Client) -> None:
    """What was applied before stays."""
    wrong = CONFIG | {"metadata": {"name": "wrong", "namespace": "default"}, "data": {"not a key": "b"}}
    applied, error = until_failure(client, [CONFIG, wrong])
    assert re.match("ConfigMap default/wrong: PATCH .* 422 ", error)
    assert applied == ["ConfigMap default/made"]
    assert [str(each) for each in apply(client, [CONFIG, wrong | {"data": {}}])] == [*applied, "ConfigMap default/wrong"]


def test_old_server_refuses_rules_and_the_error_names_the_definition(client: Client) -> None:
    documents = objects(deployment(NETWORKING, ORCH, crds=WITH_RULES))
    with pytest.raises(StoreError, match=r"^CustomResourceDefinition \w+\.crd\.svc\.internal: "):
        list(apply(client, documents, dry_run=True))


def test_fields_of_others_stay_and_own_ones_are_taken_back(client: Client) -> None:
    """Fields that another manager has changed are forced; its own keys stay. The manager is named."""
    list(apply(client, [CONFIG]))
    path = "/api/v1/namespaces/default/configmaps/made"
    client.apply(path, CONFIG | {"data": {"a": "changed", "more": "kept"}}, "somebody")
    (applied,) = apply(client, [CONFIG], manager="operator")
    assert applied.stored is not None
    assert applied.stored["data"] == {"a": "b", "more": "kept"}
    assert {entry["manager"] for entry in applied.stored["metadata"]["managedFields"]} >= {"operator", "somebody"}


@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.NEVER_SENT])
def test_lost_answers_are_repeated(workloads: Kube, client: Client, tmp_path: Path, fate: Fate) -> None:
    """A write whose answer is lost is sent again, because the second time changes nothing."""
    documents = objects(deployment(NETWORKING, ORCH))
    with ApiProxy(workloads) as proxy:
        file = tmp_path / "proxied"
        file.write_text(workloads.kubeconfig(file).read_text().replace(workloads.url, proxy.url))
        proxy.arm(Order(fate, "PATCH /apis/apps/v1/", times=2))
        with closing(open_client({"kubeconfig": str(file)})) as proxied:
            applied = list(apply(proxied, documents))
        writes = [call for call in proxy.calls if call.startswith("PATCH /apis/apps/v1/")]
    assert len(applied) == len(documents)
    assert len(writes) == 4  # the DaemonSet, and the Deployment, with two repetitions
    assert generations(list(apply(client, documents))) == generations(applied)


def test_apply_is_completed_after_a_refusal_at_any_write(workloads: Kube, client: Client, tmp_path: Path) -> None:
    """Each write fails once in its turn. Every attempt gets one object further, and the last one applies all."""
    every = objects(deployment(OPERATOR, ORCH))
    documents = [each for number, each in enumerate(every) if number < 2 or each["kind"] != DEFINITION]
    with ApiProxy(workloads) as proxy:
        file = tmp_path / "proxied"
        file.write_text(workloads.kubeconfig(file).read_text().replace(workloads.url, proxy.url))
        with closing(open_client({"kubeconfig": str(file)})) as proxied:
            for number, document in enumerate(documents):
                path = Discovery(client).find(document["apiVersion"], document["kind"])
                assert path is not None
                name = document["metadata"]["name"]
                proxy.arm(Order(Fate.ANSWERED, rf"PATCH /.*/{path.plural}/{name}\?", status=403))
                done, error = until_failure(proxied, documents)
                assert error.startswith(f"{describe(document)}: ")
                assert done == [describe(each) for each in documents[:number]]
            assert len(list(apply(proxied, documents))) == len(documents)


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_command_is_completed_by_the_next(
    workloads: Kube, client: Client, killer: Killer, tmp_path: Path, when: str
) -> None:
    """The command is killed at each write in its turn, and comes one object further each time."""
    kubeconfig = str(workloads.kubeconfig(tmp_path / "kubeconfig", ADMIN_TOKEN))
    command = ("manifests", "--kubeconfig", kubeconfig, "--image", "svc:1", "--apply")
    documents = objects(deployment(NETWORKING, ORCH))
    for number in range(1, len(documents) + 1):
        killed = killer.run(*command, kill_at=number, when=when)
        assert killed.returncode == -signal.SIGKILL, killed
        present = [bool(exists(client, each)) for each in in_order(documents)]
        assert present.count(True) == number - (when == "before")
        assert present == sorted(present, reverse=True)
    done = killer.run(*command)
    assert (done.returncode, killer.writes) == (0, len(documents)), done
    before = generations(list(apply(client, documents)))
    assert killer.run(*command).returncode == 0
    assert generations(list(apply(client, documents))) == before


@pytest.mark.parametrize("flavour", [NETWORKING, OPERATOR])
def test_installer_may_request_tokens_of_the_plugin_alone(workloads: Kube, client: Client, flavour: str) -> None:
    """The API server decides by the applied roles."""
    list(apply(client, objects(deployment(flavour, ORCH))))

    def may(account: str, verb: str, group: str, resource: str, name: str = "", namespace: str = "") -> bool:
        plural, _, part = resource.partition("/")
        attributes = {"group": group, "resource": plural, "subresource": part, "verb": verb, "name": name}
        spec = {
            "user": f"system:serviceaccount:kube-system:{account}",
            "resourceAttributes": attributes | {"namespace": namespace},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = workloads.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    group, token = "crd.svc.internal", ("create", "", "serviceaccounts/token")
    workloads.await_right(
        "system:serviceaccount:kube-system:svc-node", group, "clusterinformations", "create", allowed=True, namespace=""
    )
    assert may("svc-node", *token, "svc-cni-plugin", "kube-system")
    for name, namespace in (("svc-controllers", "kube-system"), ("svc-cni-plugin", "default"), ("", "kube-system")):
        assert not may("svc-node", *token, name, namespace)
    assert not may("svc-cni-plugin", *token, "svc-cni-plugin", "kube-system")
    assert not may("svc-node", "update", group, "clusterinformations", "other")
    assert not may("svc-node", "get", "", "pods", "a", "default")
    assert may("svc-cni-plugin", "create", group, "ipamblocks")
    assert may("svc-controllers", "update", "coordination.k8s.io", "leases", "a", "kube-system")
    assert not may("svc-controllers", "update", "coordination.k8s.io", "leases", "a", "default")
    assert may("svc-controllers", "patch", "apps", "daemonsets", "svc-node", "kube-system") == (flavour == OPERATOR)
    assert not may("svc-controllers", "patch", "apps", "daemonsets", "other", "kube-system")


def test_command_applies_what_the_server_has(workloads: Kube, client: Client, tmp_path: Path) -> None:
    """It finds the API group of the disruption budget. A dry run says what it could not check."""
    rehearsed = manifests(workloads, tmp_path, "--apply", "--dry-run", "--pool", "10.244.0.0/16")
    assert rehearsed.exit_code == 0, rehearsed.output
    assert "IPPool default-ipv4-ippool not checked: what it needs is not there yet\n" in rehearsed.output
    assert "PodDisruptionBudget kube-system/svc-controllers valid\n" in rehearsed.output
    assert client.get_if_served("/apis/apps/v1/namespaces/kube-system/daemonsets/svc-node") is None
    assert "apiVersion: policy/v1beta1\n" in manifests(workloads, tmp_path).output
    assert "maxSurge" not in manifests(workloads, tmp_path).output
    applied = manifests(workloads, tmp_path, "--apply", "--pool", "10.244.0.0/16")
    assert applied.exit_code == 0, applied.output
    assert "DaemonSet kube-system/svc-node applied\n" in applied.output
    assert client.get_if_served("/apis/crd.svc.internal/v1/ippools/default-ipv4-ippool")
    refused = manifests(workloads, tmp_path, "--apply", "--policy-api", "policy/v1")
    assert refused.exit_code == 1
    assert "does not serve PodDisruptionBudget of policy/v1" in refused.output
