"""svcctl upgrade --procedure host-endpoints beside svc-controllers: no node is without a host endpoint at any time."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from harness.api_proxy import ApiProxy
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.host_endpoint_site import HOSTS, WATCHED, Hosts
from harness.kube import Refused
from harness.orch import NODES
from harness.upgrade_faults import FAULTS, Killer, fault_at, turn_round
from svc.model.controllers_configuration import KIND as CONFIGURATION
from svc.model.host_endpoint import ALL_INTERFACES, endpoint_name
from svc.names import DEFAULT
from svc.upgrade.host_endpoint_view import HostEndpointView, Successor
from svc.upgrade.places import Place
from svc.upgrade.writer import Writer

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_move_and_undo(hosts: Hosts) -> None:
    before = hosts.content()
    planned = hosts.run("plan")
    assert planned.exit_code == 0, planned.output
    assert 'Node/hep-a: role: none -> "edge"' in planned.output
    assert "traffic that no policy selects is allowed from then on" in planned.output
    assert (hosts.content(), hosts.switch()) == (before, None)
    hosts.controllers.start().await_lead()
    with hosts.never_without():
        with watched_writes() as found, raced_writes(hosts.site.kube) as races:
            done = hosts.run("apply")
        require_guards(found)
        races.require_conflicts()
        assert done.exit_code == 0, done.output
        assert set(hosts.endpoints()) == {endpoint_name([host]) for host in HOSTS}
        assert all(hosts.labels(host)["role"] == "edge" for host in HOSTS)
        with nothing_written():
            assert hosts.run("apply").stdout == "nothing to do\n"
        with watched_writes() as found, raced_writes(hosts.site.kube) as races:
            undone = hosts.run("undo")
        require_guards(found)
        races.require_conflicts()
        assert undone.exit_code == 0, undone.output
    assert hosts.content() == before
    assert hosts.switch() == "Disabled"
    assert all("role" not in hosts.labels(host) for host in HOSTS)


def test_undo_gives_the_switch_back_to_its_manager(hosts: Hosts) -> None:
    """The next server-side apply of that manager meets no conflict, with any value."""
    spec = {"controllers": {"node": {"hostEndpoint": {"autoCreate": "Disabled"}}}}
    body = {"apiVersion": DEFAULT.crd_api_version, "kind": CONFIGURATION, "metadata": {"name": "default"}, "spec": spec}
    path = f"/apis/{DEFAULT.crd_api_version}/{CONFIGURATION.lower()}s/default"

    def managers() -> Any:
        found = hosts.site.kube.call("GET", path)["metadata"]["managedFields"]
        return {each["manager"]: each["fieldsV1"] for each in found if "f:status" not in each["fieldsV1"]}

    hosts.site.kube.call("PATCH", f"{path}?fieldManager=gitops", body, "application/apply-patch+yaml")
    before = managers()
    hosts.controllers.start().await_lead()
    for verb in ("apply", "undo"):
        done = hosts.run(verb)
        assert done.exit_code == 0, done.output
    assert hosts.switch() == "Disabled"
    assert managers() == before


def test_controllers_that_do_not_run_are_named_and_nothing_is_deleted(hosts: Hosts) -> None:
    before = hosts.content()
    done = hosts.run("apply", timeout="2s")
    assert done.exit_code == 5, done.output
    assert "host endpoint 'hep-a-auto-hep' does not exist yet" in done.output
    assert hosts.content() == before
    hosts.controllers.start().await_lead()
    done = hosts.run("apply")
    assert done.exit_code == 0, done.output
    assert hosts.content() == {}


def test_late_deletions_of_the_controllers_fail(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have decided while the switch was off does not leave a node without a host endpoint."""
    hosts.controllers.start().await_lead()
    seen: dict[str, Successor] = {}
    statuses = list[int]()
    read, delete = HostEndpointView.successors, Writer.delete

    def reading(view: HostEndpointView) -> dict[str, Successor]:
        found = read(view)
        seen.update(found)
        return found

    def deleting(writer: Writer, place: Place, live: dict[str, Any]) -> None:
        if place.name in seen:
            automatic = seen.pop(place.name).document
            assert automatic is not None
            metadata = automatic["metadata"]
            body = {"preconditions": {"resourceVersion": metadata["resourceVersion"]}}
            with pytest.raises(Refused) as refused:
                hosts.site.kube.call("DELETE", f"{WATCHED}/{metadata['name']}", body)
            statuses.append(refused.value.status)
        delete(writer, place, live)

    monkeypatch.setattr(HostEndpointView, "successors", reading)
    monkeypatch.setattr(Writer, "delete", deleting)
    with hosts.never_without():
        done = hosts.run("apply")
    assert done.exit_code == 0, done.output
    assert statuses == [409] * len(HOSTS)
    assert hosts.content() == {}


def _another_value(hosts: Hosts) -> None:
    body = {"metadata": {"labels": {"role": "core"}}}
    hosts.site.kube.call("PATCH", f"{NODES}/hep-a", body, "application/merge-patch+json")


def _unknown_node(hosts: Hosts) -> None:
    hosts.put("lost", {}, {"node": "nowhere", "interfaceName": ALL_INTERFACES})


def _overridden(hosts: Hosts) -> None:
    container = {"name": "controllers", "image": "x", "env": [{"name": "AUTO_HOST_ENDPOINTS", "value": "disabled"}]}
    labels = {"app": "c"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    metadata = {"name": "svc-controllers", "namespace": "kube-system"}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    hosts.site.kube.call("POST", "/apis/apps/v1/namespaces/kube-system/deployments", body)


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        (_another_value, "node hep-a has the label role = 'core'"),
        (_unknown_node, "host endpoint lost names node 'nowhere', which does not exist"),
        (_overridden, "AUTO_HOST_ENDPOINTS = 'disabled', which overrides the configuration"),
    ],
)
def test_obstacle_blocks_before_the_first_write(hosts: Hosts, obstacle: Callable[[Hosts], None], reason: str) -> None:
    obstacle(hosts)
    before = hosts.content()
    try:
        done = hosts.run("apply")
    finally:
        hosts.site.kube.uproot("deployments/kube-system/svc-controllers")
    assert done.exit_code == 3, done.output
    assert reason in done.output
    assert (hosts.content(), hosts.switch()) == (before, None)


def test_damaged_host_endpoint_is_named(hosts: Hosts) -> None:
    body = {"metadata": {"annotations": {DEFAULT.metadata_annotation: "{"}}}
    path = f"/apis/{DEFAULT.crd_api_version}/hostendpoints/old-hep-a"
    hosts.site.kube.call("PATCH", path, body, "application/merge-patch+json")
    done = hosts.run("apply")
    assert done.exit_code == 3, done.output
    assert "host endpoint old-hep-a cannot be read" in done.output
    assert "role" not in hosts.labels("hep-a")


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_kill_at_each_write_is_survived(hosts: Hosts, killer: Killer, verb: str) -> None:
    """The next run reaches the same end. Before and after each write."""
    before = hosts.content()
    hosts.controllers.start().await_lead()
    kills = 0
    with hosts.never_without():
        for number, when in ((number, when) for number in itertools.count(1) for when in ("before", "after")):
            if verb == "undo":
                _succeeds(hosts, "apply", number)
            killed = killer.run(*hosts.words(verb), kill_at=number, when=when)
            assert killed.returncode in (-9, 0), killed
            _succeeds(hosts, verb, number)
            assert hosts.content() == ({} if verb == "apply" else before)
            if killed.returncode == 0:
                break
            kills += 1
            if verb == "apply":
                _succeeds(hosts, "undo", number)
            assert hosts.content() == before
    assert kills > 10
    print(f"{verb}: {kills} kills at {killer.writes} writes")


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_kill_and_turn_round(hosts: Hosts, killer: Killer, verb: str) -> None:
    """Of a run that was killed, undo brings back what was there, and apply what an undone one has taken back."""
    hosts.controllers.start().await_lead()
    with hosts.never_without():
        assert turn_round(killer, hosts.words, verb, hosts.content, lambda: None) > 6


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("name", FAULTS)
def test_fault_at_each_write(hosts: Hosts, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch, verb: str, name: str) -> None:
    """The run ends well or is blocked, the next one ends well, and no node is without a host endpoint."""
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    before = hosts.content()
    hosts.controllers.start().await_lead()
    statuses = list[int]()
    with hosts.never_without():
        while (status := _run_with_fault(hosts, proxy, verb, len(statuses) + 1, name, before)) is not None:
            statuses.append(status)
    assert len(statuses) > 6
    print(f"{verb}, {name}: {len(statuses)} faults, {statuses.count(3)} blocked the run")


def _run_with_fault(hosts: Hosts, proxy: ApiProxy, verb: str, number: int, name: str, before: Any) -> int | None:
    """Run with one write that fails. Return its exit status; None if it has fewer writes."""
    if verb == "undo":
        _succeeds(hosts, "apply", number)
    orders = fault_at(number, name)
    for order in orders:
        proxy.arm(order)
    first = hosts.run(verb, server=proxy.url)
    proxy.disarm()
    assert first.exit_code in (0, 3), (number, first.output)
    _succeeds(hosts, verb, number)
    assert hosts.content() == ({} if verb == "apply" else before), number
    if verb == "apply":
        _succeeds(hosts, "undo", number)
    assert hosts.content() == before, number
    assert all("role" not in hosts.labels(host) for host in HOSTS), number
    return None if any(order.times for order in orders) else first.exit_code


def _succeeds(hosts: Hosts, verb: str, number: int) -> None:
    done = hosts.run(verb)
    assert done.exit_code == 0, (number, done.output)
