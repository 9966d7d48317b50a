"""The controller `loadbalancer` on real servers: addresses of services, with either datastore."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import Site, set_ready
from harness.ipam import document, put, put_node, put_pool, remove, take
from harness.kube import Kube
from harness.polling import eventually, wait_until
from harness.running_controller import Running, running
from harness.services import NAMESPACE, Services, await_served, held, in_namespace, store_for_services
from svc._core.cidr import Address, Cidr
from svc.attach.datastore_ready import KEY as READINESS
from svc.controllers.configuration import Configuration
from svc.controllers.loadbalancer.service_addresses import ServiceAddresses
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.ipam.load_balancer import LOAD_BALANCERS, attributes_of, handle_of
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, ResourceKey
from svc.model.pool import LOAD_BALANCER

pytestmark = pytest.mark.server

Json = dict[str, Any]


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with store_for_services(site) as made:
        yield made


@pytest.fixture
def services(kube: Kube) -> Iterator[Services]:
    with in_namespace(kube) as made:
        yield made


@pytest.fixture
def run(client: Client, store: Backend, services: Services) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(client, store, ServiceAddresses, **options))


def await_free(store: Backend) -> None:
    assert eventually(lambda: held(store), lambda found: found == {}) == {}


def await_refusal(caplog: pytest.LogCaptureFixture, text: str, name: str = "web") -> None:
    begin = f"controller loadbalancer: {NAMESPACE}/{name} is tried again in "
    wait_until(lambda: any(begin in line and text in line for line in caplog.messages))


# what a service gets


def test_service_gets_an_address_until_it_is_deleted(run: Callable[..., Running], services: Services, store: Backend) -> None:
    found = run()
    service = services.make()
    (address,) = eventually(services.shown, bool)
    assert Address(address) in [Address(f"10.66.0.{number}") for number in range(16)]
    ipam = IpamService(store, LOAD_BALANCERS)
    ((got, owner),) = ipam.owners_of(handle_of(NAMESPACE, "web", service["metadata"]["uid"])).items()
    assert str(got) == address
    assert {**owner, "timestamp": ""} == {"service": "web", "namespace": NAMESPACE, "type": "LoadBalancer", "timestamp": ""}
    services.delete()
    await_free(store)
    assert found.failures == []


def test_dual_stack_service_gets_an_address_of_each_family(
    run: Callable[..., Running], services: Services, store: Backend
) -> None:
    services.make(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv6", "IPv4"])
    run()
    six, four = eventually(services.shown, lambda shown: len(shown) == 2)
    assert (six[:6], four[:6]) == ("fd66::", "10.66.")
    await_served(services, store, six, four)


def test_family_without_a_pool_does_not_hold_up_the_other(
    run: Callable[..., Running], services: Services, store: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    remove_pool(store, "lb6")
    services.make(ipFamilyPolicy="RequireDualStack")
    run()
    (four,) = eventually(services.shown, bool)
    await_refusal(caplog, "no IPv6 pool is available to virtual host 'load-balancer'")
    put_pool(store, "lb6", "fd66::/124", blockSize=126, allowedUses=[LOAD_BALANCER])
    found = eventually(services.shown, lambda shown: len(shown) == 2)
    assert found[0] == four


def remove_pool(store: Backend, name: str) -> None:
    remove(store, ResourceKey("IPPool", name))


def test_annotations_choose_pools(
    run: Callable[..., Running], services: Services, store: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """A later choice of other pools replaces the address. A pool for workloads is refused."""
    services.make(annotations={"ipv4pools": ["10.67.0.0/29"]})
    run()
    (address,) = eventually(services.shown, bool)
    assert address.startswith("10.67.0.")
    services.change(annotations={"ipv4pools": ["lb4"]})
    (address,) = eventually(services.shown, lambda shown: bool(shown) and shown[0].startswith("10.66.0."))
    await_served(services, store, address)
    services.change(annotations={"ipv4pools": ["pods"]})
    await_refusal(caplog, "IP pool (pods) is not for load balancers")
    await_served(services, store)


@pytest.mark.parametrize("way", ["annotation", "field"])
def test_requested_address_is_given_and_changed(
    way: str, run: Callable[..., Running], services: Services, store: Backend
) -> None:
    def wanting(address: str) -> Json:
        return {"annotations": {"loadBalancerIPs": [address]}} if way == "annotation" else {"loadBalancerIP": address}

    services.make(**wanting("10.66.0.9"))
    run()
    await_served(services, store, "10.66.0.9")
    services.change(**wanting("10.66.0.3"))
    await_served(services, store, "10.66.0.3")
    assert set(held(store)) == {services.handle()}


def test_two_services_that_request_one_address(
    run: Callable[..., Running], services: Services, store: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one gets it after the first one is gone."""
    services.make("first", {"loadBalancerIPs": ["10.66.0.9"]})
    run()
    await_served(services, store, "10.66.0.9", name="first")
    services.make("second", {"loadBalancerIPs": ["10.66.0.9"]})
    await_refusal(caplog, f"address '10.66.0.9' belongs to service {NAMESPACE}/first: request another one", "second")
    assert services.shown("second") == ()
    services.delete("first")
    await_served(services, store, "10.66.0.9", name="second")


def test_address_of_no_pool_for_services_is_refused(
    run: Callable[..., Running], services: Services, store: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    services.make(annotations={"loadBalancerIPs": ["10.65.0.1"]})
    run()
    await_refusal(caplog, "IP pool (pods) is not for load balancers")
    assert held(store) == {}


def test_invalid_annotation_changes_nothing(
    run: Callable[..., Running], services: Services, store: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    services.make()
    run()
    shown = eventually(services.shown, bool)
    services.change(annotations={"loadBalancerIPs": "10.66.0.9"})
    await_refusal(caplog, "metadata.annotations[svc.internal/loadBalancerIPs] = '\"10.66.0.9\"' is not a JSON list")
    await_served(services, store, *shown)


def test_pool_selects_namespaces(run: Callable[..., Running], services: Services, store: Backend) -> None:
    remove_pool(store, "lb4")
    put_pool(store, "blue", "10.68.0.0/29", blockSize=30, allowedUses=[LOAD_BALANCER], namespaceSelector="team == 'blue'")
    put_pool(store, "red", "10.69.0.0/29", blockSize=30, allowedUses=[LOAD_BALANCER], namespaceSelector="team == 'red'")
    services.make()
    run()
    (address,) = eventually(services.shown, bool)
    assert address.startswith("10.69.0.")


# when a service loses its addresses


def test_changed_type_releases_and_clears_the_status(run: Callable[..., Running], services: Services, store: Backend) -> None:
    services.make()
    run()
    eventually(services.shown, bool)
    services.change(type="ClusterIP")
    await_free(store)
    assert services.shown() == ()
    services.change(type="LoadBalancer")
    eventually(services.shown, bool)


def test_service_that_was_created_again_has_another_handle(
    run: Callable[..., Running], services: Services, store: Backend
) -> None:
    services.make(annotations={"loadBalancerIPs": ["10.66.0.9"]})
    found = run()
    await_served(services, store, "10.66.0.9")
    before = services.handle()
    found.election.resign()
    services.delete()
    services.make(annotations={"loadBalancerIPs": ["10.66.0.9"]})
    assert services.handle() != before
    found.lead()
    await_served(services, store, "10.66.0.9")
    assert set(held(store)) == {services.handle()}


def test_only_services_that_request_addresses_get_some_if_so_configured(
    run: Callable[..., Running], services: Services, store: Backend
) -> None:
    services.make("plain")
    services.make("asks", {"ipv4pools": ["lb4"]})
    found = run(configuration=Configuration(assigns_all_services=False))
    (address,) = eventually(lambda: services.shown("asks"), bool)
    assert services.shown("plain") == ()
    found.live.replace(replace(found.live.now, assigns_all_services=True))
    eventually(lambda: services.shown("plain"), bool)
    found.live.replace(replace(found.live.now, assigns_all_services=False))
    eventually(lambda: services.shown("plain"), lambda shown: not shown)
    await_served(services, store, address, name="asks")
    wait_until(lambda: set(held(store)) == {services.handle("asks")})


@pytest.fixture
def classes(client: Client, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return classes by service, which tests set. The API server of the tests is older than the field."""
    found: dict[str, str] = {}
    (
        get,
        pages,
    ) = client.get, client.pages

    def classed(each: Json) -> Json:
        if each["metadata"].get("name") in found and "spec" in each:
            each["spec"]["loadBalancerClass"] = found[each["metadata"]["name"]]
        return each

    def get_classed(path: str, **params: str) -> Json:
        return classed(get(path, **params))

    def pages_classed(path: str, **params: str) -> Iterator[Any]:
        for page in pages(path, **params):
            for each in page.items:
                classed(each)
            yield page

    monkeypatch.setattr(client, "get", get_classed)
    monkeypatch.setattr(client, "pages", pages_classed)
    return found


def test_service_of_another_class_is_not_touched(
    run: Callable[..., Running], services: Services, store: Backend, classes: dict[str, str], proxy: ApiProxy
) -> None:
    """Its addresses of svc are released, and the status stays: another program writes it."""
    classes.update(web="example.com/other", ours="svc")
    services.make()
    services.show("10.66.0.9")
    ipam = IpamService(store, LOAD_BALANCERS)
    attributes = attributes_of(NAMESPACE, "web", "LoadBalancer", 0)
    ipam.assign(Assign(services.handle(), attributes, addresses=(Address("10.66.0.9"),), use=LOAD_BALANCER))
    services.make("ours")
    run()
    eventually(lambda: services.shown("ours"), bool)
    wait_until(lambda: set(held(store)) == {services.handle("ours")})
    assert services.shown() == ("10.66.0.9",)
    assert not [call for call in proxy.calls if "PATCH" in call and "/web/" in call]


# rounds


def test_leaked_addresses_go_and_those_of_pods_stay(run: Callable[..., Running], services: Services, store: Backend) -> None:
    """The service was deleted while no controller ran."""
    ipam = IpamService(store, LOAD_BALANCERS)
    handle = handle_of(NAMESPACE, "gone", "u1")
    attributes = attributes_of(NAMESPACE, "gone", "LoadBalancer", 0)
    ipam.assign(Assign(handle, attributes, (4, 6), use=LOAD_BALANCER))
    (unnamed,) = take(ipam, "lb-other", use=LOAD_BALANCER)
    put_node(store)
    (pod,) = take(IpamService(store, "node1"), "net.c")
    run()
    kept = {"lb-other": {unnamed}, "net.c": {pod}}
    assert eventually(lambda: held(store), lambda found: found == kept) == kept


def test_leak_stays_until_the_service_was_read(
    run: Callable[..., Running], services: Services, store: Backend, proxy: ApiProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """A 404 of another program, such as a proxy, does not show that the service is gone."""
    ipam = IpamService(store, LOAD_BALANCERS)
    handle = handle_of(NAMESPACE, "web", "u1")
    ipam.assign(Assign(handle, attributes_of(NAMESPACE, "web", "LoadBalancer", 0), use=LOAD_BALANCER))
    before = held(store)
    proxy.arm(Order(Fate.ANSWERED, "^GET .*services/web", status=404, body=b"404 page not found"))
    run()
    await_refusal(caplog, "404")
    assert held(store) == before
    await_free(store)


def test_lost_addresses_are_assigned_again(run: Callable[..., Running], services: Services, store: Backend) -> None:
    """The datastore was restored: no handle holds the address in the status. Clients use it, so the service gets it again."""
    services.make()
    found = run()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
    found.election.resign()
    IpamService(store, LOAD_BALANCERS).release(Release(services.handle()))
    take(IpamService(store, LOAD_BALANCERS), "lb-other", use=LOAD_BALANCER, at="10.66.0.15")
    services.make("second")
    found.lead()
    await_served(services, store, address)
    assert eventually(lambda: services.shown("second"), bool) != (address,)


def test_lost_address_is_not_given_to_a_service_that_has_its_turn_first(
    run: Callable[..., Running], services: Services, store: Backend, proxy: ApiProxy
) -> None:
    """The datastore was restored, and each new address may be one that it has lost."""
    (first,) = take(IpamService(store, LOAD_BALANCERS), "lb-former", use=LOAD_BALANCER)
    block = Cidr.masked(f"{first}/30")
    IpamService(store, LOAD_BALANCERS).release(Release("lb-former"))
    services.make()
    services.show(*(str(block.address(ordinal)) for ordinal in range(block.size)))
    proxy.arm(Order(Fate.ANSWERED, "^GET .*services/web$", times=2))
    run()
    services.make("second")
    (address,) = eventually(lambda: services.shown("second"), bool)
    assert Address(address) not in block


def test_nothing_is_assigned_while_nodes_claim_addresses_that_the_datastore_has_lost(
    run: Callable[..., Running],
    services: Services,
    store: Backend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool may serve both, and a block that a node has claimed since the backup looks free."""
    monkeypatch.setattr("svc.attach.store_identity.HOLD_SECONDS", 2.0)

    def identify(guid: str) -> None:
        information = store.get(READINESS).value
        put(store, READINESS, replace(information, spec=information.spec | {"clusterGUID": guid}))

    identify("first")
    services.make()
    run()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
    identify("restored")
    services.make("second")
    await_refusal(caplog, "has lost data", "second")
    assert eventually(lambda: services.shown("second"), bool) != (address,)


def test_lost_address_that_another_service_has_is_replaced(
    run: Callable[..., Running], services: Services, store: Backend
) -> None:
    take(IpamService(store, LOAD_BALANCERS), "lb-other", use=LOAD_BALANCER, at="10.66.0.9")
    services.make()
    services.show("10.66.0.9")
    run()
    (address,) = eventually(services.shown, lambda shown: shown != ("10.66.0.9",))
    await_served(services, store, address)


def test_status_that_another_program_has_changed_is_corrected(
    run: Callable[..., Running], services: Services, store: Backend
) -> None:
    services.make()
    run()
    (address,) = eventually(services.shown, bool)
    services.show("192.0.2.1")
    await_served(services, store, address)


def test_status_of_another_program_stays_without_pools_for_services(
    run: Callable[..., Running], services: Services, store: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider of load balancers serves the services without a class. It is left alone until a pool is for services."""
    remove_pools(store)
    services.make()
    services.show("192.0.2.1")
    services.make("fixed", loadBalancerIP="192.0.2.2")
    services.show("192.0.2.2", name="fixed")
    run()
    await_refusal(caplog, "address '192.0.2.2' is not in any enabled IP pool", "fixed")
    assert services.shown("fixed") == ("192.0.2.2",)
    assert services.shown() == ("192.0.2.1",)
    assert f"{NAMESPACE}/web is tried again" not in caplog.text
    put_pool(store, "lb4", "10.66.0.0/28", blockSize=30, allowedUses=[LOAD_BALANCER])
    (address,) = eventually(services.shown, lambda shown: shown != ("192.0.2.1",))
    await_served(services, store, address)
    assert services.shown("fixed") == ("192.0.2.2",)


def test_stale_address_of_a_pool_for_services_is_hidden(
    run: Callable[..., Running], services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    services.make(annotations={"loadBalancerIPs": ["192.0.2.1"]})
    services.show("10.66.0.9", "192.0.2.1")
    run()
    await_refusal(caplog, "address '192.0.2.1' is not in any enabled IP pool")
    assert services.shown() == ("192.0.2.1",)


def remove_pools(store: Backend) -> None:
    for name in ("lb4", "lb4b", "lb6"):
        remove(store, ResourceKey("IPPool", name))


def test_lost_handle_does_not_double_the_address(run: Callable[..., Running], services: Services, store: Backend) -> None:
    services.make()
    found = run()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
    found.election.resign()
    remove(store, HandleKey(services.handle()))
    services.show()
    found.lead()
    await_served(services, store, address)


def test_handle_that_counts_too_many_addresses_is_corrected(
    run: Callable[..., Running], services: Services, store: Backend
) -> None:
    """An assignment has failed between the write of the handle and that of the block."""
    services.make()
    put(store, HandleKey(services.handle()), Handle({"10.66.0.0/30": 1}))
    run()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)


def test_round_without_differences_sends_no_request(
    run: Callable[..., Running], services: Services, store: Backend, proxy: ApiProxy
) -> None:
    services.make()
    found = run()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
    wait_until(lambda: list(found.part.round_items()) == [])
    wait_until(lambda: found.part.waiting == 0)
    calls = len(proxy.calls)
    for _ in range(3):
        assert list(found.part.round_items()) == []
    assert len(proxy.calls) == calls


# faults


@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.NEVER_SENT])
def test_lost_status_write_is_completed_and_not_doubled(
    fate: Fate, run: Callable[..., Running], services: Services, store: Backend, proxy: ApiProxy
) -> None:
    proxy.arm(Order(fate, "^PATCH .*services/web/status"))
    run()
    services.make()
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
    assert len(held(store)) == 1


def test_conflict_of_the_status_is_tried_again(
    run: Callable[..., Running], services: Services, store: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user requests another address between the read of the service and the write of its status."""
    patch, changes = client.patch, iter([["10.66.0.9"]])

    def patch_late(path: str, *arguments: Any, **params: str) -> Json:
        for wanted in changes:
            services.change(annotations={"loadBalancerIPs": wanted})
        return patch(path, *arguments, **params)

    monkeypatch.setattr(client, "patch", patch_late)
    services.make()
    run()
    await_served(services, store, "10.66.0.9")


def test_locked_datastore_is_not_changed(
    run: Callable[..., Running],
    services: Services,
    store: Backend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither is the status. No read of the readiness before the lock counts."""
    monkeypatch.setattr("svc.controllers.guarded_store.READY_SECONDS", 0.0)
    caplog.set_level("DEBUG", "svc.controllers")  # a reason that two services share is a warning once
    services.make("first")
    run()
    (address,) = eventually(lambda: services.shown("first"), bool)
    await_served(services, store, address, name="first")
    set_ready(store, ready=False)
    before = document(store)
    services.make()
    services.show(name="first")
    services.make("third")
    services.change("third", type="ClusterIP")
    await_refusal(caplog, "the datastore is locked")
    await_refusal(caplog, "the datastore is locked", "first")
    assert document(store) == before
    assert (services.shown(), services.shown("first")) == ((), ())
    set_ready(store)
    eventually(services.shown, bool)
    await_served(services, store, address, name="first")


def test_only_the_leader_writes(run: Callable[..., Running], services: Services, store: Backend) -> None:
    services.make()
    found = run(leads=False)
    wait_until(lambda: found.part.is_ready)
    assert (services.shown(), held(store)) == ((), {})
    found.lead()
    eventually(services.shown, bool)


def test_status_is_not_written_after_the_end_of_the_lead(
    run: Callable[..., Running], services: Services, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assignment was the last write. The next leader completes it."""
    found = run()
    part: Any = found.part
    assign = part._ipam.assign

    def assign_and_resign(request: Assign) -> Any:
        got = assign(request)
        found.election.resign()
        return got

    monkeypatch.setattr(part._ipam, "assign", assign_and_resign)
    services.make()
    wait_until(lambda: bool(held(store)))
    wait_until(lambda: found.part.waiting == 1)
    assert services.shown() == ()
    monkeypatch.setattr(part._ipam, "assign", assign)
    before = held(store)
    found.lead()
    eventually(services.shown, bool)
    assert held(store) == before


def test_refused_status_write_keeps_the_address(
    run: Callable[..., Running], services: Services, store: Backend, proxy: ApiProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.arm(Order(Fate.ANSWERED, "^PATCH .*services/web/status", status=403))
    services.make()
    run()
    await_refusal(caplog, "403")
    (address,) = eventually(services.shown, bool)
    await_served(services, store, address)
