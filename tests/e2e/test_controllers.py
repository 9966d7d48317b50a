"""svc-controllers on a real etcd and a real API server: what it writes, who leads, and what faults do."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.controllers import LEASE, Cluster, cluster
from harness.datastores import EtcdSite, session, set_ready
from harness.etcd import cluster as run_etcd
from harness.kube import Kube, running
from harness.polling import eventually, wait_until
from harness.stopped import stop
from svc.datastore.api import Create, Delete, Update
from svc.leader.election import LEASE_SECONDS, RENEW_SECONDS
from svc.model.keys import ResourceKey
from svc.model.object_metadata import bit_reversed_uid
from svc.model.resource import Resource

pytestmark = pytest.mark.server

ALLOW_ALL = {"action": "Allow", "source": {}, "destination": {}}
DENY_ALL = {
    "tier": "default",
    "order": 1000,
    "selector": "svc.internal/orchestrator == 'k8s'",
    "types": ["Ingress"],
}
NAMESPACE, ACCOUNT = ResourceKey("Profile", "kns.c-a"), ResourceKey("Profile", "ksa.c-a.web")
POLICY = ResourceKey("NetworkPolicy", "knp.default.deny", "c-a")


class Copies:
    """The objects in etcd."""

    def __init__(self, site: EtcdSite) -> None:
        self.site = site

    def find(self, key: ResourceKey) -> Resource | None:
        with session(self.site) as store:
            entry = store.find(key)
        return entry.value if entry else None

    def spec(self, key: ResourceKey) -> Any:
        found = self.find(key)
        return found and found.spec

    def await_spec(self, key: ResourceKey, spec: Any) -> None:
        found = eventually(lambda: self.spec(key), lambda found: found == spec)
        assert found == spec

    def put(self, key: ResourceKey, spec: Any) -> None:
        with session(self.site) as store:
            entry = store.find(key)
            copy = Resource(key.kind, {"name": key.name, "namespace": key.namespace, "labels": {"own": "yes"}}, spec)
            store.write([Create(key, copy) if entry is None else Update(key, copy, entry.revision)])

    def delete(self, key: ResourceKey) -> None:
        with session(self.site) as store:
            store.write([Delete(key, store.get(key).revision)])

    def set_ready(self, *, ready: bool = True) -> None:
        with session(self.site) as store:
            set_ready(store, ready=ready)

    def everything(self) -> dict[str, str]:
        return self.site.running.texts("/svc/")


@pytest.fixture
def copies(etcd_site: EtcdSite) -> Iterator[Copies]:
    """Return the objects of an etcd that is ready."""
    made = Copies(etcd_site)
    made.set_ready()
    yield made
    etcd_site.clear()


@pytest.fixture
def controllers(kube: Kube, copies: Copies, tmp_path: Path) -> Iterator[Cluster]:
    """Return the cluster, with a namespace, an account and a policy, but without a process."""
    with cluster(kube, tmp_path, {"ETCD_ENDPOINTS": copies.site.running.endpoints}) as made:
        made.make_namespace("c-a", team="red")
        made.make_account("c-a", "web", app="web")
        made.make_policy("c-a", "deny")
        yield made


def test_copies_follow_their_originals(controllers: Cluster, copies: Copies) -> None:
    process = controllers.start()
    copies.await_spec(POLICY, DENY_ALL)
    labels = {"pcns.team": "red", "pcns.svc.internal/name": "c-a"}
    copies.await_spec(NAMESPACE, {"ingress": [ALLOW_ALL], "egress": [ALLOW_ALL], "labelsToApply": labels})
    copies.await_spec(ACCOUNT, {"labelsToApply": {"pcsa.app": "web", "pcsa.svc.internal/name": "web"}})
    made = copies.find(NAMESPACE)
    assert made is not None
    original = controllers.kube.call("GET", "/api/v1/namespaces/c-a")
    assert made.metadata["uid"] == bit_reversed_uid(original["metadata"]["uid"])

    controllers.label_namespace("c-a", team="blue")
    controllers.change_policy("c-a", "deny", ingress=[{"ports": [{"port": 80}, {"port": "http"}]}])
    copies.await_spec(NAMESPACE, made.spec | {"labelsToApply": labels | {"pcns.team": "blue"}})
    rule = ALLOW_ALL | {"protocol": "TCP", "destination": {"ports": [80, "http"]}}
    copies.await_spec(POLICY, DENY_ALL | {"ingress": [rule]})

    controllers.kube.forget("networkpolicies/c-", "serviceaccounts/c-", "namespaces/c-")
    for key in (NAMESPACE, ACCOUNT, POLICY):
        copies.await_spec(key, None)
    assert process.terminate() == 0


def test_edits_of_copies_are_reverted_and_other_objects_stay(controllers: Cluster, copies: Copies) -> None:
    foreign = [
        ResourceKey("Profile", "mine"),
        ResourceKey("Profile", "ksa.half"),  # no service account can have it
        ResourceKey("NetworkPolicy", "mine", "c-a"),
        ResourceKey("NetworkPolicy", "knp.other", "c-a"),
    ]
    for key in foreign:
        copies.put(key, {"labelsToApply": {}})
    controllers.start().await_lead()
    copies.await_spec(POLICY, DENY_ALL)

    copies.put(POLICY, DENY_ALL | {"order": 1})
    copies.await_spec(POLICY, DENY_ALL)
    edited = copies.find(POLICY)
    assert edited is not None
    assert edited.labels == {"own": "yes"}  # only the spec belongs to the controller
    copies.delete(POLICY)
    copies.await_spec(POLICY, DENY_ALL)
    extra = ResourceKey("NetworkPolicy", "knp.default.extra", "c-a")
    copies.put(extra, DENY_ALL)
    copies.await_spec(extra, None)
    assert [copies.spec(key) for key in foreign] == [{"labelsToApply": {}}] * len(foreign)


def test_restart_repairs_what_happened_before(controllers: Cluster, copies: Copies) -> None:
    first = controllers.start()
    copies.await_spec(POLICY, DENY_ALL)
    copies.await_spec(ACCOUNT, {"labelsToApply": {"pcsa.app": "web", "pcsa.svc.internal/name": "web"}})
    assert first.terminate() == 0
    controllers.delete_policy("c-a", "deny")
    controllers.make_policy("c-a", "new")
    copies.put(ACCOUNT, {"labelsToApply": {}})
    controllers.start()
    copies.await_spec(POLICY, None)
    copies.await_spec(ResourceKey("NetworkPolicy", "knp.default.new", "c-a"), DENY_ALL)
    copies.await_spec(ACCOUNT, {"labelsToApply": {"pcsa.app": "web", "pcsa.svc.internal/name": "web"}})


def test_restart_without_changes_writes_nothing(controllers: Cluster, copies: Copies) -> None:
    first = controllers.start()
    copies.await_spec(POLICY, DENY_ALL)
    wait_until(lambda: len(controllers.kube.call("GET", "/api/v1/namespaces")["items"]) == 5)  # with those of Kubernetes
    wait_until(lambda: "ksa.c-a.web" in str(copies.everything()) and str(copies.everything()).count("/profiles/kns.") == 5)
    assert first.terminate() == 0
    before = copies.everything()
    second = controllers.start()
    second.await_lead()
    controllers.make_policy("c-a", "next")
    second.await_line("created c-a/knp.default.next")
    assert {path: text for path, text in copies.everything().items() if "knp.default.next" not in path} == before


def test_lists_of_several_pages_are_copied(controllers: Cluster, copies: Copies) -> None:
    count = 250  # a page has 200
    for number in range(count):
        controllers.make_account("c-a", f"a{number:03}")
    process = controllers.start()
    wait_until(lambda: sum("ksa.c-a.a" in path for path in copies.everything()) == count)
    assert process.terminate() == 0
    again = controllers.start(ENABLED_CONTROLLERS="serviceaccount")
    again.await_lead()
    # one by one: the server may report only a part of what one transaction of etcd deletes
    controllers.kube.call("DELETE", "/api/v1/namespaces/c-a/serviceaccounts")
    wait_until(lambda: not any("ksa.c-a" in path for path in copies.everything()))


# the election


@pytest.mark.slow
def test_killed_leader_is_replaced(controllers: Cluster, copies: Copies) -> None:
    leader = controllers.start()
    leader.await_lead()
    copies.await_spec(POLICY, DENY_ALL)
    other = controllers.start()
    other.await_line("controller policy is enabled")
    leader.kill()
    began = time.monotonic()
    controllers.delete_policy("c-a", "deny")
    other.await_lead()
    assert time.monotonic() - began < 20
    copies.await_spec(POLICY, None)


def test_ended_leader_is_replaced_at_once(controllers: Cluster) -> None:
    leader = controllers.start()
    leader.await_lead()
    other = controllers.start()
    other.await_line("controller policy is enabled")
    began = time.monotonic()
    assert leader.terminate() == 0
    other.await_lead()
    assert time.monotonic() - began < 3


def test_one_process_leads(controllers: Cluster, copies: Copies) -> None:
    processes = [controllers.start() for _ in range(3)]
    wait_until(lambda: any("this process leads" in process.text for process in processes))
    copies.await_spec(POLICY, DENY_ALL)
    for _ in range(5):
        copies.delete(POLICY)
        copies.await_spec(POLICY, DENY_ALL)
    assert sum("this process leads" in process.text for process in processes) == 1
    assert sum("created" in process.text for process in processes) == 1


@pytest.mark.slow
def test_paused_leader_writes_nothing_until_it_leads_again(controllers: Cluster, copies: Copies) -> None:
    leader = controllers.start()
    leader.await_lead()
    copies.await_spec(POLICY, DENY_ALL)
    wait_until(lambda: len(copies.everything()) >= 4)
    stop(leader.pid)
    controllers.take_lease("another")
    controllers.change_policy("c-a", "deny", policyTypes=["Egress"])
    copies.put(ACCOUNT, {"labelsToApply": {}})
    time.sleep(RENEW_SECONDS + 2)  # the subject of the test
    before = copies.everything()
    os.kill(leader.pid, signal.SIGCONT)
    resumed = time.monotonic()
    leader.await_line("does not lead any more")
    while time.monotonic() - resumed < LEASE_SECONDS - 3:
        assert copies.everything() == before
        time.sleep(0.2)
    leader.await_lead(2)
    copies.await_spec(POLICY, DENY_ALL | {"types": ["Egress"]})


def test_deleted_lease_is_made_again_by_the_leader(controllers: Cluster) -> None:
    leader, other = controllers.start(), None
    leader.await_lead()
    other = controllers.start()
    other.await_line("controller policy is enabled")
    holder = controllers.kube.call("GET", LEASE)["spec"]["holderIdentity"]
    wait_until(lambda: controllers.kube.call("GET", LEASE)["spec"]["holderIdentity"] == holder)
    time.sleep(2.5)  # until the other process has seen who holds the Lease
    controllers.kube.call("DELETE", LEASE)
    wait_until(lambda: holder in str(controllers.kube.call("GET", "/apis/coordination.k8s.io/v1/leases")))
    assert "this process leads" not in other.text


# faults


def test_processes_that_are_killed_between_writes_leave_no_difference(controllers: Cluster, copies: Copies) -> None:
    """Each one is killed after some of its writes. The Lease is deleted, because it would expire 15 s later."""
    kept = {"deny"}
    for number in range(6):
        made = {f"p{number}-{each}" for each in range(20)}
        for name in made:
            controllers.make_policy("c-a", name)
        for name in sorted(kept)[: len(kept) // 2]:
            controllers.delete_policy("c-a", name)
            kept.discard(name)
        kept |= made
        process = controllers.start(ENABLED_CONTROLLERS="policy")
        process.await_line("controller policy: created", 1 + 3 * number)
        process.kill()
        controllers.kube.call("DELETE", LEASE)
    controllers.start(ENABLED_CONTROLLERS="policy")
    found = {f"/svc/resources/v3/svc.internal/networkpolicies/c-a/knp.default.{name}" for name in kept}
    wait_until(lambda: {path for path in copies.everything() if "networkpolicies" in path} == found)


@pytest.mark.slow
def test_servers_that_were_away_are_used_again(tmp_path: Path) -> None:
    """Both servers are of this test alone, because it starts them again."""
    with running(tmp_path) as kube, run_etcd(tmp_path) as etcd, cluster(kube, tmp_path, {}) as controllers:
        copies = Copies(EtcdSite(etcd))
        copies.set_ready()
        controllers.make_namespace("c-a", team="red")
        controllers.make_policy("c-a", "deny")
        process = controllers.start(ETCD_ENDPOINTS=etcd.endpoints)
        copies.await_spec(POLICY, DENY_ALL)

        kube.stop_server()
        copies.put(POLICY, DENY_ALL | {"order": 1})
        process.await_line("the election is interrupted")
        process.await_line("the watch of /api/v1/namespaces is interrupted")
        kube.start_server()
        controllers.label_namespace("c-a", team="green")
        copies.await_spec(POLICY, DENY_ALL)
        eventually(lambda: copies.spec(NAMESPACE), lambda spec: spec and spec["labelsToApply"]["pcns.team"] == "green")

        (member,) = etcd.members
        member.kill()
        controllers.change_policy("c-a", "deny", policyTypes=["Egress"])
        process.await_line("is tried again in")
        etcd.restart(member)
        copies.await_spec(POLICY, DENY_ALL | {"types": ["Egress"]})


def test_locked_datastore_is_not_changed(controllers: Cluster, copies: Copies) -> None:
    copies.set_ready(ready=False)
    process = controllers.start()
    process.await_line("the datastore is locked")
    assert len(copies.everything()) == 1
    copies.set_ready()
    copies.await_spec(POLICY, DENY_ALL)


def test_history_of_etcd_is_compacted_by_the_leader(controllers: Cluster, copies: Copies) -> None:
    etcd = copies.site.running
    leader = controllers.start(COMPACTION_PERIOD="1s")
    leader.await_lead()
    other = controllers.start(COMPACTION_PERIOD="1s", LOG_LEVEL="debug")
    first = etcd.put("/svc-test", "1")
    etcd.put("/svc-test", "2")
    wait_until(lambda: not etcd.has_history(first))
    assert "is compacted" not in other.text
    assert leader.terminate() == 0
    other.await_line("etcd is compacted to revision")
    assert "was not compacted" not in leader.text + other.text
    etcd.erase("/svc-test")


# the start


def test_missing_rights_are_reported(controllers: Cluster, copies: Copies, tmp_path: Path) -> None:
    kubeconfig = controllers.kube.kubeconfig(tmp_path / "nobody", "token-of-nobody")
    process = controllers.start(KUBECONFIG=str(kubeconfig))
    process.await_line("the election is interrupted: GET /apis/coordination")
    process.await_line("the watch of /apis/networking.k8s.io/v1/networkpolicies is interrupted")
    assert "grant it to the user of svc-controllers" in process.text
    assert "administrator" not in process.text
    assert process.terminate() == 0


def test_controllers_are_idle_if_the_datastore_is_the_api(controllers: Cluster, copies: Copies) -> None:
    process = controllers.start(DATASTORE_TYPE="kubernetes")
    process.await_lead()
    for name in ("policy", "namespace", "serviceaccount"):
        assert f"controller {name} is idle" in process.text
    assert len(copies.everything()) == 1
    assert process.terminate() == 0


def test_network_configuration_names_the_datastore(controllers: Cluster, copies: Copies, tmp_path: Path) -> None:
    access = {"policy": {"type": "orch"}, "orch": {"kubeconfig": controllers.environment["KUBECONFIG"]}}
    document = {"name": "n", "type": "svc", "ipam": {"type": "svc-ipam"}, **access, **copies.site.config}
    (tmp_path / "net.json").write_text(json.dumps(document))
    controllers.environment = {"ENABLED_CONTROLLERS": "policy"}
    controllers.start("--netconf", str(tmp_path / "net.json"))
    copies.await_spec(POLICY, DENY_ALL)
    assert copies.spec(NAMESPACE) is None


def test_invalid_settings_end_the_start(controllers: Cluster) -> None:
    process = controllers.start(ENABLED_CONTROLLERS="policy,nodes", SVC_LOG_LEVEL="loud", ETCD_ENDPOINTS="10.0.0.1")
    assert process._process.wait(20) == 1
    for part in ("ENABLED_CONTROLLERS = 'policy,nodes'", "SVC_LOG_LEVEL = 'loud'", "ETCD_ENDPOINTS = '10.0.0.1'"):
        assert part in process.text
