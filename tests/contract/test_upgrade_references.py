"""References to owners in the API group are away while a cluster is upgraded, with a real garbage collector."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import raced_writes, require_guards, watched_writes
from harness.kube import Kube, Refused, running
from harness.polling import eventually
from harness.upgrade_faults import FAULTS, Killer, fail_writes, kill_at_writes, killing
from harness.upgrade_site import DAEMON_SET_STEP, UpgradeSite, old, running_site
from svc.deploy.crds import definitions
from svc.names import DEFAULT

pytestmark = pytest.mark.server

Json = dict[str, Any]

POOLS = f"/apis/{DEFAULT.api_version}/ippools"
MAPS = "/api/v1/namespaces/default/configmaps"
RESERVATIONS = f"/apis/{DEFAULT.api_version}/ipreservations"
REMOVE, RESTORE = "remove-references", "restore-references"
ROUND_SECONDS = 180.0  # the collector looks for new kinds every 30 s


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("server"), has_workloads=True) as kube:
        kube.apply(definitions(DEFAULT, DEFAULT.api_version, with_rules=False))
        with kube.controllers("daemonset", "garbagecollector"):
            yield kube


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, ["node1"]).running() as made:
        yield made


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    for made in running_site(server, tmp_path):
        made.install(old())
        body = {"apiVersion": DEFAULT.api_version, "kind": "ClusterInformation", "metadata": {"name": "default"}}
        server.call("POST", f"/apis/{DEFAULT.api_version}/clusterinformations", body | {"spec": {"svcVersion": "0.1.0"}})
        yield made
        server.forget("svc.internal/", "configmaps/default/")


def owner(kube: Kube) -> str:
    """Create the owner, and return its UID."""
    body = {"apiVersion": DEFAULT.api_version, "kind": "IPPool", "metadata": {"name": "owner"}, "spec": {"cidr": "10.9.0.0/16"}}
    return str(kube.call("POST", POOLS, body)["metadata"]["uid"])


def reference(uid: str, name: str = "owner") -> Json:
    return {"apiVersion": DEFAULT.api_version, "kind": "IPPool", "name": name, "uid": uid, "blockOwnerDeletion": True}


def dependents(kube: Kube, uid: str) -> None:
    """Create a ConfigMap with two owners, and a custom resource with one."""
    other = kube.call("POST", MAPS, {"metadata": {"name": "other"}})["metadata"]["uid"]
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other}
    kube.call("POST", MAPS, {"metadata": {"name": "dependent", "ownerReferences": [kept, reference(uid)]}})
    body = {"apiVersion": DEFAULT.api_version, "kind": "IPReservation", "spec": {"reservedCIDRs": ["10.9.0.1"]}}
    kube.call("POST", RESERVATIONS, body | {"metadata": {"name": "dependent", "ownerReferences": [reference(uid)]}})


def references(kube: Kube) -> list[str]:
    """Return the UIDs of the owners in the group; one for each reference."""
    found = [kube.call("GET", f"{path}/dependent")["metadata"].get("ownerReferences") or () for path in (MAPS, RESERVATIONS)]
    return [each["uid"] for owners in found for each in owners if each["kind"] == "IPPool"]


def await_collection(kube: Kube) -> None:
    """Wait for two rounds of the garbage collector: each one discovers a new kind, and reads the objects of all kinds again.

    A round has ended when the collector has deleted an object of that kind whose owner has another UID."""
    for number in (1, 2):
        group, plural = f"round{number}.example", "rounds"
        kube.apply([definition_of(group, plural)])
        wrong = reference("6c9454e0-dc5d-4270-b8f1-f659d60bcef5")
        body = {"apiVersion": f"{group}/v1", "kind": "Round", "metadata": {"name": "doomed", "ownerReferences": [wrong]}}
        path = f"/apis/{group}/v1/{plural}"
        kube.call("POST", path, body)
        until = time.monotonic() + ROUND_SECONDS
        while kube.call("GET", path)["items"]:
            assert time.monotonic() < until, f"round {number} does not end"
            time.sleep(0.2)
        kube.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}")


def definition_of(group: str, plural: str) -> Json:
    """Return the definition of a kind without a schema."""
    version = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": "Round", "plural": plural}
    spec = {"group": group, "names": names, "scope": "Cluster", "versions": [version]}
    metadata = {"name": f"{plural}.{group}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def number_of_objects(kube: Kube) -> int:
    return sum(len(kube.call("GET", path)["items"]) for path in (MAPS, RESERVATIONS))


@pytest.mark.slow
def test_owner_with_a_new_uid_keeps_its_dependents(site: UpgradeSite, kubelets: FakeKubelets, killer: Killer) -> None:
    """No reference is left in between, and all are restored with the UID that the owner has then."""
    kube = site.kube
    uid = owner(kube)
    dependents(kube, uid)
    kubelets.stuck["node1"] = ("ImagePullBackOff", "")
    results = []
    run = threading.Thread(target=lambda: results.append(killer.run(*site.words("apply"))))
    run.start()
    try:
        eventually(site.record, lambda found: found and found["steps"][DAEMON_SET_STEP] == "waiting")
        assert references(kube) == []
        kube.call("DELETE", f"{POOLS}/owner")
        changed = owner(kube)
    finally:
        kubelets.stuck.clear()
        run.join()
    assert results[0].returncode == 0, results[0].stderr
    assert "not the predicted" in results[0].stderr
    assert references(kube) == [changed, changed]
    number = number_of_objects(kube)
    await_collection(kube)
    assert references(kube) == [changed, changed]
    assert number_of_objects(kube) == number
    first = kube.call("GET", f"{MAPS}/dependent")["metadata"]["ownerReferences"][0]
    assert first["name"] == "other"
    assert site.run("apply").stdout == "nothing to do\n"


@pytest.mark.slow
def test_undo_brings_the_references_back(site: UpgradeSite) -> None:
    uid = owner(site.kube)
    dependents(site.kube, uid)
    before = [site.kube.call("GET", f"{path}/dependent")["metadata"]["ownerReferences"] for path in (MAPS, RESERVATIONS)]
    site.succeeds("apply")
    site.succeeds("undo")
    after = [site.kube.call("GET", f"{path}/dependent")["metadata"]["ownerReferences"] for path in (MAPS, RESERVATIONS)]
    assert after == before
    await_collection(site.kube)
    assert references(site.kube) == [uid, uid]


def test_nothing_to_upgrade_leaves_references_alone(site: UpgradeSite) -> None:
    site.succeeds("apply")
    uid = owner(site.kube)
    dependents(site.kube, uid)
    assert site.run("apply").stdout == "nothing to do\n"
    assert references(site.kube) == [uid, uid]


def test_reference_that_was_removed_on_purpose_stays_away(site: UpgradeSite) -> None:
    """Only what the present run has removed is restored."""
    dependents(site.kube, owner(site.kube))
    site.succeeds("apply")
    patch = {"metadata": {"ownerReferences": None}}
    site.kube.call("PATCH", f"{RESERVATIONS}/dependent", patch, "application/merge-patch+json")
    assert site.run("apply").stdout == "nothing to do\n"
    site.succeeds("undo")
    assert len(references(site.kube)) == 1


@contextmanager
def adding_again(kube: Kube, uid: str) -> Iterator[None]:
    """Add a reference as often as it is removed, as a program for deployments does."""
    ended, own = threading.Event(), kube.connected_again()
    patch = {"metadata": {"ownerReferences": [reference(uid)]}}

    def add() -> None:
        while not ended.wait(0.001):
            with suppress(Refused):
                own.call("PATCH", f"{RESERVATIONS}/dependent", patch, "application/merge-patch+json")

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        own.stop()


def test_reference_that_is_added_again_blocks_the_upgrade(site: UpgradeSite) -> None:
    uid = owner(site.kube)
    dependents(site.kube, uid)
    before = site.state(old())
    with adding_again(site.kube, uid):
        refused = site.run("apply")
    assert refused.exit_code == 3, refused.output
    assert "added again" in refused.stderr or REMOVE in refused.stderr
    assert site.state(old()) == before
    site.succeeds("apply")
    assert references(site.kube) == [uid, uid]


def test_what_is_gone_is_reported(site: UpgradeSite, kubelets: FakeKubelets) -> None:
    """A reference whose owner does not exist any more is not restored."""
    uid = owner(site.kube)
    dependents(site.kube, uid)
    kubelets.stuck["node1"] = ("ImagePullBackOff", "")
    assert site.run("apply", "--timeout", "0s").exit_code == 5
    site.kube.call("DELETE", f"{POOLS}/owner")
    kubelets.stuck.clear()
    done = site.run("apply")
    assert done.exit_code == 0, done.output
    assert "IPReservation/dependent -> IPPool/owner is not restored: its owner does not exist any more" in done.stderr
    assert references(site.kube) == []


@pytest.mark.slow
def test_kill_while_references_are_away(site: UpgradeSite, killer: Killer) -> None:
    """Wherever the run is killed, the references are there after the next one."""
    uid = owner(site.kube)
    dependents(site.kube, uid)
    assert killer.run(*site.words("apply")).returncode == 0
    writes = killer.writes
    for number in range(4, writes, 3):
        site.clear()
        site.install(old())
        assert killer.run(*site.words("apply"), kill_at=number, when="after").returncode == -9, number
        resumed = killer.run(*site.words("apply"))
        assert resumed.returncode == 0, (number, resumed.stderr)
        assert references(site.kube) == [uid, uid], number
        assert site.run("verify").exit_code == 0


Ways = tuple[Callable[[], None], Callable[[], None]]


def ways(site: UpgradeSite, verb: str) -> Ways:
    """Return what makes the cluster as it is before a run, and what checks its end."""
    uid = owner(site.kube)
    dependents(site.kube, uid)

    def prepare() -> None:
        site.clear()
        site.install(old())
        if verb == "undo":
            site.succeeds("apply")

    def check() -> None:
        assert references(site.kube) == [uid, uid]
        record = site.record()
        assert record
        assert record["state"] == ("done" if verb == "apply" else "undone")

    return prepare, check


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_kill_at_each_write(site: UpgradeSite, killer: Killer, verb: str) -> None:
    print(verb, kill_at_writes(killer, site.words(verb), *ways(site, verb), 1))


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_fault_at_each_write(site: UpgradeSite, server: Kube, verb: str) -> None:
    """Each write gets one of the faults."""
    with ApiProxy(server) as proxy:
        print(verb, fail_writes(proxy, lambda: site.run(verb, server=proxy.url), *ways(site, verb), itertools.cycle(FAULTS)))


def test_each_write_names_what_it_was_made_for(site: UpgradeSite) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again."""
    prepare, _ = ways(site, "apply")
    prepare()
    for verb in ("apply", "undo"):
        with watched_writes() as found, raced_writes(site.kube) as races:
            site.succeeds(verb)
        require_guards(found)
        races.require_conflicts()
        assert {f"{MAPS}/dependent", f"{RESERVATIONS}/dependent"} < races.statuses.keys()
        assert len(references(site.kube)) == 2
