"""Automatic host endpoints, on both datastores of a cluster with real servers."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from harness.datastores import EtcdSite, Site, session, set_ready
from harness.ipam import put
from harness.orch import NODES, put_core_node
from harness.polling import eventually, wait_until
from harness.running_controller import Running, running
from svc.controllers.conditions import Condition
from svc.controllers.configuration import Configuration, HostEndpointTemplate
from svc.controllers.node.host_endpoint_controller import CLASH, INVALID, HostEndpoints
from svc.datastore.api import Backend, Create, Delete, Update
from svc.datastore.orch.client import Client
from svc.model.controllers_configuration import KEY as CONFIGURATION
from svc.model.controllers_configuration import defaults
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.kv_codec import Codec
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

KEY = ResourceKey("HostEndpoint", "n1-auto-hep")
CREATED_BY = {f"{DEFAULT.label_prefix}/created-by": DEFAULT.controllers}
ENABLED = Configuration(creates_host_endpoints=True)
TEMPLATES = (
    HostEndpointTemplate("t", ("10.0.0.0/8",), labels={"x": "y"}, annotations={"a": "b"}, node_selector="has(rack)"),
    HostEndpointTemplate("u", (), "^eth"),
)


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    """Return a session of the test itself."""
    with session(site) as made:
        set_ready(made)
        yield made
    site.clear()


@pytest.fixture
def run(site: Site, client: Client, store: Backend) -> Iterator[Callable[..., Running]]:
    """Return a function that starts the part with a configuration."""
    with ExitStack() as stack:

        def start(configuration: Configuration = ENABLED) -> Running:
            own = stack.enter_context(session(site))
            return stack.enter_context(running(client, own, HostEndpoints, configuration=configuration))

        yield start


def find(store: Backend, name: str = KEY.name) -> Any:
    entry = store.find(ResourceKey(KEY.kind, name))
    return entry and entry.value


def names(store: Backend) -> list[str]:
    return [entry.value.name for entry in store.list(ResourceQuery(KEY.kind))]


def edit(store: Backend, name: str = KEY.name, labels: Any = None, **spec: Any) -> None:
    """Change a host endpoint as a user does."""

    def changed(found: Resource | None) -> Resource:
        assert found is not None
        metadata = found.metadata | ({} if labels is None else {"labels": labels})
        return replace(found, metadata=metadata, spec=found.spec | spec)

    store.update(ResourceKey(KEY.kind, name), changed)


def put_node(site: Site, store: Backend, name: str, **labels: str) -> None:
    """Make a node with addresses and interfaces."""
    if store.atomic:
        spec = {
            "bgp": {"ipv4Address": "10.0.0.1/24"},
            "addresses": [{"address": "172.16.0.1", "type": "InternalIP"}],
            "interfaces": [{"name": "eth0", "addresses": ["10.0.0.7"]}],
        }
        put(store, ResourceKey("Node", name), Resource("Node", {"name": name, "labels": labels}, spec))
        return
    prefix = DEFAULT.label_prefix
    notes = {
        f"{prefix}/IPv4Address": "10.0.0.1/24",
        f"{prefix}/Interfaces": '[{"name":"eth0","addresses":["10.0.0.7"]}]',
    }
    put_core_node(site.kube, name, labels, **notes)  # type: ignore[attr-defined]
    status = {"status": {"addresses": [{"address": "172.16.0.1", "type": "InternalIP"}]}}
    site.kube.call("PATCH", f"{NODES}/{name}/status", status, "application/merge-patch+json")  # type: ignore[attr-defined]


def label_node(store: Backend, name: str, **labels: str) -> None:
    entry = store.get(ResourceKey("Node", name))
    metadata = entry.value.metadata | {"labels": entry.value.labels | labels}
    store.write([Update(entry.key, replace(entry.value, metadata=metadata), entry.revision)])


def awaited(part: Running, kind: str) -> Condition:
    """Wait for a condition of this kind."""
    found = eventually(lambda: condition(part, kind), lambda found: found)
    assert found is not None
    return found


def condition(part: Running, kind: str) -> Condition | None:
    return next((each for each in part.shared.conditions.all() if each.kind == kind), None)


def test_each_node_has_a_host_endpoint(run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1", rack="a")
    run()
    made = eventually(lambda: find(store), lambda found: found and "172.16.0.1" in found.spec["expectedIPs"])
    assert made.labels == {"rack": "a", **CREATED_BY}
    assert made.metadata["uid"]
    assert made.metadata["creationTimestamp"]
    addresses = ["10.0.0.1", "172.16.0.1", "10.0.0.7"]
    spec = {"node": "n1", "interfaceName": "*", "expectedIPs": addresses, "profiles": ["svc-default-allow"]}
    assert made.spec == spec
    put_node(site, store, "n2")
    wait_until(lambda: names(store) == ["n1-auto-hep", "n2-auto-hep"])


def test_labels_follow_the_node(run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1", rack="a")
    run()
    wait_until(lambda: bool(find(store)))
    began = time.monotonic()
    label_node(store, "n1", rack="b")
    wait_until(lambda: find(store).labels == {"rack": "b", **CREATED_BY})
    print(f"from node label to host endpoint: {time.monotonic() - began:.3f} s")


def test_host_endpoint_goes_with_its_node(run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1")
    put_node(site, store, "n2")
    run()
    wait_until(lambda: len(names(store)) == 2)
    store.write([Delete(ResourceKey("Node", "n1"))])
    wait_until(lambda: names(store) == ["n2-auto-hep"])


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {**CREATED_BY, "rack": "z", "mine": "x"}},
        {"labels": CREATED_BY},
        {"expectedIPs": ["1.2.3.4"]},
        {"interfaceName": "eth0"},
        {"profiles": ["other"]},
        {"profiles": []},
        {"node": "n2"},
        {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    ],
    ids=str,
)
def test_edit_is_reverted(change: Any, run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1", rack="a")
    put_node(site, store, "n2")
    run()
    wait_until(lambda: len(names(store)) == 2 and len(find(store).spec["expectedIPs"]) == 3)
    made = find(store)
    edit(store, **change)
    wait_until(lambda: find(store) == made)


def test_deletion_is_reverted(run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1")
    run()
    wait_until(lambda: bool(find(store)))
    uid = find(store).metadata["uid"]
    store.write([Delete(KEY)])
    made = eventually(lambda: find(store), lambda found: found)
    assert made.metadata["uid"] != uid


def test_host_endpoint_of_somebody_else_stays_and_is_reported(run: Callable[..., Running], site: Site, store: Backend) -> None:
    own = Resource("HostEndpoint", {"name": KEY.name, "labels": {"mine": "x"}}, {"node": "n1", "interfaceName": "eth9"})
    store.write([Create(KEY, own)])
    put_node(site, store, "n1")
    put_node(site, store, "n2")
    part = run()
    wait_until(lambda: len(names(store)) == 2)
    found = awaited(part, CLASH)
    assert (found.status, found.reason) == ("True", "NameTaken")
    assert "host endpoint n1-auto-hep stays as it is, because it lacks the label of the controllers" in found.message
    assert find(store).spec == own.spec
    part.live.replace(Configuration())
    wait_until(lambda: names(store) == ["n1-auto-hep"] and condition(part, CLASH) is None)
    part.live.replace(ENABLED)
    wait_until(lambda: condition(part, CLASH) is not None)
    store.write([Delete(KEY)])
    wait_until(lambda: find(store) is not None and find(store).labels == CREATED_BY)
    wait_until(lambda: condition(part, CLASH) is None)


def test_host_endpoint_that_loses_its_label_is_somebody_elses(run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1")
    part = run()
    wait_until(lambda: bool(find(store)))
    edit(store, labels={})
    wait_until(lambda: condition(part, CLASH) is not None)
    assert find(store).labels == {}


def test_disabling_deletes_all_with_the_label_and_only_those(run: Callable[..., Running], site: Site, store: Backend) -> None:
    others = {"a": {}, "b-auto-hep": {next(iter(CREATED_BY)): "me"}, "n9-auto-hep": CREATED_BY, "c": CREATED_BY}
    for name, labels in others.items():
        made = Resource("HostEndpoint", {"name": name, "labels": labels}, {"node": "n9", "interfaceName": "*"})
        store.write([Create(ResourceKey("HostEndpoint", name), made)])
    put_node(site, store, "n1", rack="a")
    part = run(replace(ENABLED, host_endpoint_templates=TEMPLATES))
    wait_until(lambda: names(store) == ["a", "b-auto-hep", "n1-auto-hep", "n1-t-auto-hep", "n1-u-eth0-auto-hep"])
    part.live.replace(Configuration(host_endpoint_templates=TEMPLATES))
    wait_until(lambda: names(store) == ["a", "b-auto-hep"])


def test_former_configuration_deletes_nothing(run: Callable[..., Running], site: Site, store: Backend) -> None:
    """Host endpoints were switched off and on again, and the part knows only of the first."""
    put_node(site, store, "n1")
    part = run()
    wait_until(lambda: bool(find(store)))
    on, off = defaults(), defaults()
    on["controllers"]["node"]["hostEndpoint"]["autoCreate"] = "Enabled"
    put(store, CONFIGURATION, Resource(CONFIGURATION.kind, {"name": CONFIGURATION.name}, on))
    part.live.replace(Configuration(), off)
    wait_until(lambda: part.part.tally.failed > 1)
    assert find(store)
    part.live.replace(ENABLED, on)
    wait_until(lambda: part.part.waiting == 0)
    assert find(store)
    store.update(CONFIGURATION, lambda found: found and replace(found, spec=off))
    part.live.replace(Configuration(), off)
    wait_until(lambda: names(store) == [])


def test_configuration_that_cannot_be_decoded_or_is_gone_changes_nothing(
    run: Callable[..., Running], site: Site, store: Backend
) -> None:
    """The last one stays in force, also for deletions. It is gone from the API server, and damaged in etcd."""
    put_node(site, store, "n1")
    part = run()
    wait_until(lambda: bool(find(store)))
    if isinstance(site, EtcdSite):
        site.running.put(Codec(DEFAULT).path(CONFIGURATION), "[]")
    part.live.replace(Configuration(), defaults())
    wait_until(lambda: names(store) == [])


def test_templates(run: Callable[..., Running], site: Site, store: Backend) -> None:
    put_node(site, store, "n1", rack="a")
    part = run(replace(ENABLED, host_endpoint_templates=TEMPLATES, creates_default_host_endpoint=False))
    wait_until(lambda: names(store) == ["n1-t-auto-hep", "n1-u-eth0-auto-hep"])
    made = find(store, "n1-t-auto-hep")
    assert (made.labels, made.metadata["annotations"]) == ({"rack": "a", "x": "y", **CREATED_BY}, {"a": "b"})
    assert made.spec == {"node": "n1", "expectedIPs": ["10.0.0.1", "10.0.0.7"], "profiles": ["svc-default-allow"]}
    assert find(store, "n1-u-eth0-auto-hep").spec["interfaceName"] == "eth0"
    part.live.replace(replace(part.live.now, host_endpoint_templates=TEMPLATES[1:]))
    wait_until(lambda: names(store) == ["n1-u-eth0-auto-hep"])
    part.live.replace(replace(part.live.now, host_endpoint_templates=(), creates_default_host_endpoint=True))
    wait_until(lambda: names(store) == ["n1-auto-hep"])


def test_host_endpoint_of_a_template_goes_when_the_node_is_not_selected(
    run: Callable[..., Running], site: Site, store: Backend
) -> None:
    wanted = (replace(TEMPLATES[0], node_selector="rack == 'a'"),)
    put_node(site, store, "n1", rack="a")
    run(replace(ENABLED, host_endpoint_templates=wanted))
    wait_until(lambda: "n1-t-auto-hep" in names(store))
    label_node(store, "n1", rack="b")
    wait_until(lambda: names(store) == ["n1-auto-hep"])


def test_invalid_template_is_reported_and_left_out(run: Callable[..., Running], site: Site, store: Backend) -> None:
    wrong = HostEndpointTemplate("w", node_selector="rack ==")
    put_node(site, store, "n1", rack="a")
    part = run(replace(ENABLED, host_endpoint_templates=(wrong, *TEMPLATES)))
    wait_until(lambda: names(store) == ["n1-auto-hep", "n1-t-auto-hep", "n1-u-eth0-auto-hep"])
    found = condition(part, INVALID)
    assert found is not None
    assert "template 'w' is left out: nodeSelector" in found.message
    part.live.replace(ENABLED)
    wait_until(lambda: condition(part, INVALID) is None)
    assert part.failures == []


def test_long_name_is_hashed(run: Callable[..., Running], site: Site, store: Backend) -> None:
    name = "n" * 250
    put_node(site, store, name)
    run()
    made = eventually(lambda: names(store), bool)
    assert len(made[0]) < 60
    assert made[0].endswith("-auto-hep")
    wait_until(lambda: find(store, made[0]).spec["node"] == name)


def test_two_nodes_that_make_one_name(run: Callable[..., Running], site: Site, store: Backend) -> None:
    template = HostEndpointTemplate("b", ("10.0.0.0/8",))
    other = HostEndpointTemplate("c-b", ("10.0.0.0/8",))
    put_node(site, store, "a-c")
    put_node(site, store, "a")
    part = run(replace(ENABLED, host_endpoint_templates=(template, other)))
    wait_until(lambda: {"a-b-auto-hep", "a-c-b-auto-hep", "a-c-c-b-auto-hep"} <= set(names(store)))
    found = awaited(part, CLASH)
    assert "host endpoint a-c-b-auto-hep is that of node a, and a-c have none" in found.message
    assert find(store, "a-c-b-auto-hep").spec["node"] == "a"
    store.write([Delete(ResourceKey("Node", "a"))])
    wait_until(lambda: find(store, "a-c-b-auto-hep").spec["node"] == "a-c" and condition(part, CLASH) is None)


def test_nothing_is_written_while_the_datastore_is_locked(run: Callable[..., Running], site: Site, store: Backend) -> None:
    set_ready(store, ready=False)
    put_node(site, store, "n1")
    part = run()
    wait_until(lambda: part.part.is_ready and part.part.waiting > 0)
    assert names(store) == []
    set_ready(store)
    wait_until(lambda: names(store) == ["n1-auto-hep"])


def test_late_table_deletes_nothing(
    run: Callable[..., Running], site: Site, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that a host endpoint names is read again before a deletion."""
    put_node(site, store, "n1")
    part = run()
    wait_until(lambda: bool(find(store)))
    endpoints = part.part
    assert isinstance(endpoints, HostEndpoints)
    monkeypatch.setattr(endpoints._names, "node", lambda _: "")
    uid = find(store).metadata["uid"]
    endpoints.settle(KEY.name)
    assert find(store).metadata["uid"] == uid


@pytest.mark.parametrize("labels", [CREATED_BY, {"mine": "x"}], ids=["own", "other"])
def test_host_endpoint_that_the_table_does_not_show_yet_is_read(
    labels: Any, run: Callable[..., Running], site: Site, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader, or a user, may just have created it."""
    put_node(site, store, "n1")
    part = run()
    wait_until(lambda: find(store) is not None and len(find(store).spec["expectedIPs"]) == 3)
    endpoints = part.part
    assert isinstance(endpoints, HostEndpoints)
    endpoints.stop()
    assert endpoints.await_writes(20)
    edit(store, labels=labels, profiles=[])
    wait_until(lambda: [each.value.labels for each in [endpoints._stored.get(KEY)] if each] == [labels])
    monkeypatch.setattr(endpoints._stored, "get", lambda _: None)
    endpoints.settle(KEY.name)
    assert find(store).spec.get("profiles", []) == (["svc-default-allow"] if labels == CREATED_BY else [])


def test_profiles_labels_annotations_and_ports_survive(store: Backend) -> None:
    """The schemas of the API server must not drop fields."""
    spec = {
        "node": "n1",
        "interfaceName": "eth0",
        "expectedIPs": ["10.0.0.1", "fd00::1"],
        "profiles": ["a", "b"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "x", "port": 1, "protocol": 17}],
    }
    metadata = {"name": "own", "labels": {"a": "b"}, "annotations": {"c": "d"}}
    key = ResourceKey("HostEndpoint", "own")
    store.write([Create(key, Resource("HostEndpoint", dict(metadata), spec))])
    found = store.get(key).value
    assert found.spec == spec
    assert metadata.items() <= found.metadata.items()
