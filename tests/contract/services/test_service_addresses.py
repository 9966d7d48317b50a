"""What the controller `loadbalancer` gives to services and takes from them, with either datastore."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.api_proxy import ApiProxy
from harness.ipam import put_pool, remove
from harness.polling import eventually, wait_until
from harness.running_controller import Running
from harness.services import NAMESPACE, Services, await_free, await_refusal, await_served, held
from svc._core.cidr import Address
from svc.controllers.configuration import Configuration
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.ipam.load_balancer import LOAD_BALANCERS, attributes_of, handle_of
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.keys import ResourceKey
from svc.model.pool import LOAD_BALANCER

pytestmark = pytest.mark.server

Json = dict[str, Any]


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
