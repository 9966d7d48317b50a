"""Orders of events in which a node could lose its host endpoint, during an upgrade to automatic ones and back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.host_endpoint_site import HOSTS, WATCHED, Hosts
from harness.kube import Refused
from harness.orch import NODES
from harness.polling import wait_until
from harness.stopped import stopped
from svc.model.controllers_configuration import KIND as CONFIGURATION
from svc.model.host_endpoint import ALL_INTERFACES, endpoint_name
from svc.names import DEFAULT
from svc.upgrade.former_host_endpoints import FormerEndpoints
from svc.upgrade.places import Place
from svc.upgrade.writer import Writer

pytestmark = [pytest.mark.server, pytest.mark.slow]

Json = dict[str, Any]

SETTINGS = f"/apis/{DEFAULT.crd_api_version}/{CONFIGURATION.lower()}s/default"
MERGE = "application/merge-patch+json"
FORMER = f"{WATCHED}/old-hep-a"
AUTOMATIC = f"{WATCHED}/{endpoint_name(['hep-a'])}"


def configure(hosts: Hosts, **fields: str) -> None:
    """Change fields of the configuration for host endpoints."""
    body = {"spec": {"controllers": {"node": {"hostEndpoint": fields}}}}
    hosts.site.kube.call("PATCH", SETTINGS, body, MERGE)


def expect(hosts: Hosts, verb: str, status: int, *texts: str, timeout: str = "60s") -> None:
    """Run svcctl, and check its exit status and what it says."""
    done = hosts.run(verb, timeout=timeout)
    assert done.exit_code == status, done.output
    for text in texts:
        assert text in done.output


@contextmanager
def automatic_beside_former(hosts: Hosts) -> Iterator[None]:
    """Have automatic host endpoints of controllers that are stopped in the block."""
    process = hosts.controllers.start()
    process.await_lead()
    for host in HOSTS:
        hosts.site.kube.call("PATCH", f"{NODES}/{host}", {"metadata": {"labels": {"role": "edge"}}}, MERGE)
    wait_until(lambda: hosts.switch() is not None)
    configure(hosts, autoCreate="Enabled")
    names = {endpoint_name([host]) for host in HOSTS}
    wait_until(lambda: all("role" in each.labels for name, each in hosts.endpoints().items() if name in names))
    wait_until(lambda: names <= hosts.endpoints().keys())
    wait_until(lambda: running(hosts) == "Enabled")
    with stopped(process.pid):
        yield


def running(hosts: Hosts) -> Any:
    """Return the value of the switch that the controllers have published as that in force."""
    status = hosts.site.kube.call("GET", SETTINGS).get("status") or {}
    return status.get("runningConfig", {}).get("controllers", {}).get("node", {}).get("hostEndpoint", {}).get("autoCreate")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec": {"interfaceName": "eth0"}}, "is that of interface 'eth0' of node 'hep-a'"),
        ({"spec": {"node": "hep-b"}}, "is that of interface '*' of node 'hep-b'"),
        ({"metadata": {"finalizers": ["foregroundDeletion"]}}, "is being deleted"),
    ],
    ids=["interface", "node", "deleted"],
)
def test_automatic_one_that_does_not_cover_the_node_does_not_stand_in(hosts: Hosts, change: Json, text: str) -> None:
    with hosts.never_without():
        with automatic_beside_former(hosts):
            hosts.site.kube.call("PATCH", AUTOMATIC, change, MERGE)
            if "metadata" in change:
                hosts.site.kube.call("DELETE", AUTOMATIC)
            expect(hosts, "apply", 5, text, timeout="2s")
            if "metadata" in change:
                hosts.site.kube.call("PATCH", AUTOMATIC, {"metadata": {"finalizers": None}}, MERGE)
        expect(hosts, "apply", 0)


def test_node_that_never_had_one_is_waited_for(hosts: Hosts) -> None:
    with automatic_beside_former(hosts):
        hosts.site.add_node("hep-new")
        expect(hosts, "apply", 5, "host endpoint 'hep-new-auto-hep' does not exist yet", timeout="2s")
    expect(hosts, "apply", 0)


def test_switch_that_a_user_turns_off_during_the_run_keeps_the_former_ones(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, keep = hosts.content(), FormerEndpoints._keep

    def keep_and_turn_off(step: FormerEndpoints, automatic: Json) -> None:
        keep(step, automatic)
        configure(hosts, autoCreate="Disabled")

    process = hosts.controllers.start()
    process.await_lead()
    with hosts.never_without():
        with monkeypatch.context() as patched:
            patched.setattr(FormerEndpoints, "_keep", keep_and_turn_off)
            expect(hosts, "apply", 3, "do not follow the switch", "autoCreate", "is Disabled, not Enabled")
        assert hosts.content() == before
        expect(hosts, "apply", 0)


def test_controllers_that_follow_an_earlier_switch_are_waited_for(hosts: Hosts) -> None:
    """Automatic host endpoints that they have not deleted yet prove nothing."""
    before, process = hosts.content(), hosts.controllers.start()
    process.await_lead()
    with hosts.never_without():
        expect(hosts, "apply", 0)
        process.kill()
        hosts.site.kube.forget("leases/kube-system/")
        expect(hosts, "undo", 0)
        status = {"runningConfig": {"controllers": {"node": {"hostEndpoint": {"autoCreate": "Disabled"}}}}}
        hosts.site.kube.call("PATCH", SETTINGS, {"status": status}, MERGE)  # as they have left it
        expect(hosts, "apply", 5, "do not follow the switch: status.runningConfig", timeout="2s")
        assert hosts.content() == before
        hosts.controllers.start().await_lead()
        expect(hosts, "apply", 0)


def test_default_host_endpoints_that_are_off_are_named(hosts: Hosts) -> None:
    hosts.controllers.start().await_lead()
    wait_until(lambda: hosts.switch() is not None)
    configure(hosts, createDefaultHostEndpoint="Disabled")
    for verb, status in (("plan", 3), ("apply", 3)):
        expect(hosts, verb, status, "createDefaultHostEndpoint is Disabled", "set it to Enabled")
    configure(hosts, createDefaultHostEndpoint="Enabled")
    expect(hosts, "apply", 0)
    configure(hosts, createDefaultHostEndpoint="Disabled")
    expect(hosts, "verify", 6, "createDefaultHostEndpoint is Disabled")


def test_node_without_a_host_endpoint_is_named_after_the_run(hosts: Hosts) -> None:
    process = hosts.controllers.start()
    process.await_lead()
    expect(hosts, "apply", 0)
    process.kill()
    for host in HOSTS:
        hosts.site.kube.call("DELETE", f"{WATCHED}/{endpoint_name([host])}")
    texts = [f"node {host} has no host endpoint for all interfaces" for host in HOSTS]
    expect(hosts, "verify", 6, *texts)
    expect(hosts, "apply", 3, *texts)


@pytest.mark.parametrize(
    "spec", [{"node": "hep-a", "interfaceName": "eth0"}, {"node": "hep-b", "interfaceName": ALL_INTERFACES}]
)
def test_undo_refuses_another_one_of_the_name(hosts: Hosts, spec: Json) -> None:
    before = hosts.content()
    hosts.controllers.start().await_lead()
    with hosts.never_without():
        expect(hosts, "apply", 0)
        hosts.put("old-hep-a", {}, spec)
        expect(hosts, "undo", 3, "another host endpoint has the name of a former one", "HostEndpoint/old-hep-a: spec.")
        assert hosts.switch() == "Enabled"
        hosts.site.kube.call("DELETE", FORMER)
        expect(hosts, "undo", 0)
    assert hosts.content() == before


def test_finalizer_of_a_former_one_is_named(hosts: Hosts) -> None:
    before = hosts.content()
    hosts.site.kube.call("PATCH", FORMER, {"metadata": {"finalizers": ["tests/keep"]}}, MERGE)
    hosts.controllers.start().await_lead()
    with hosts.never_without():
        expect(hosts, "apply", 3, "host endpoint old-hep-a is being deleted, and its finalizers keep it: tests/keep")
        expect(hosts, "undo", 3, "old-hep-a is being deleted, and will be missing: remove its finalizers tests/keep")
        assert hosts.switch() == "Enabled"
        hosts.site.kube.call("PATCH", FORMER, {"metadata": {"finalizers": None}}, MERGE)
        expect(hosts, "undo", 0)
        assert hosts.site.kube.call("GET", FORMER)["metadata"]["finalizers"] == ["tests/keep"]
        assert hosts.content() == before
        hosts.site.kube.call("PATCH", FORMER, {"metadata": {"finalizers": None}}, MERGE)


def test_undo_gives_back_owners_and_managers(hosts: Hosts) -> None:
    """An owner that is gone is left out: the object would be collected as garbage."""
    namespace = hosts.site.kube.call("GET", "/api/v1/namespaces/kube-system")["metadata"]
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": "kube-system"}
    owners = [owner | {"uid": namespace["uid"]}, owner | {"name": "gone", "uid": "8c6f6f0e-0000-4000-8000-000000000000"}]
    spec = {"node": "hep-a", "interfaceName": ALL_INTERFACES, "expectedIPs": ["192.0.2.1"], "profiles": ["mine"]}
    body: Json = {"apiVersion": DEFAULT.crd_api_version, "kind": "HostEndpoint"}
    body |= {"metadata": {"name": "old-hep-a", "ownerReferences": owners}, "spec": spec}
    hosts.site.kube.call("DELETE", FORMER)

    def apply_by_its_manager() -> None:
        hosts.site.kube.call("PATCH", f"{FORMER}?fieldManager=gitops", body, "application/apply-patch+yaml")

    apply_by_its_manager()
    hosts.controllers.start().await_lead()
    with hosts.never_without():
        expect(hosts, "apply", 0)
        expect(hosts, "undo", 0)
    found = hosts.site.kube.call("GET", FORMER)["metadata"]
    assert found["ownerReferences"] == owners[:1]
    spec["expectedIPs"] = ["192.0.2.9"]
    apply_by_its_manager()


def test_deletion_that_arrives_after_the_undo_fails(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run was stopped while the request was on its way."""
    before, sent = hosts.content(), list[Json]()

    def stop_before(_: Writer, place: Place, live: Json) -> None:
        sent.append(live["metadata"])
        raise KeyboardInterrupt

    hosts.controllers.start().await_lead()
    with hosts.never_without():
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "delete", stop_before)
            expect(hosts, "apply", 130)
        (late,) = sent
        expect(hosts, "undo", 0)
        guards = {"uid": late["uid"], "resourceVersion": late["resourceVersion"]}
        with pytest.raises(Refused) as refused:
            hosts.site.kube.call("DELETE", f"{WATCHED}/{late['name']}", {"preconditions": guards})
        assert refused.value.status == 409
    assert hosts.content() == before
    assert "revised" not in json.dumps(hosts.site.kube.call("GET", WATCHED))


def test_switch_back_that_arrives_after_the_next_apply_fails(hosts: Hosts) -> None:
    """The undo that sent it was killed, and has changed nothing else."""
    hosts.controllers.start().await_lead()
    with hosts.never_without():
        expect(hosts, "apply", 0)
        late = hosts.site.kube.call("GET", SETTINGS)["metadata"]["resourceVersion"]
        hosts.put("old-hep-a", {"role": "edge"}, {"node": "hep-a", "interfaceName": ALL_INTERFACES})  # as that undo has it
        expect(hosts, "apply", 0)
        guard = {"op": "test", "path": "/metadata/resourceVersion", "value": late}
        change = {"op": "replace", "path": "/spec/controllers/node/hostEndpoint/autoCreate", "value": "Disabled"}
        with pytest.raises(Refused):
            hosts.site.kube.call("PATCH", SETTINGS, [guard, change], "application/json-patch+json")
    assert hosts.switch() == "Enabled"
