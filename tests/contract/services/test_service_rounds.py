"""Rounds of the controller `loadbalancer`: what they find and correct."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.ipam import put, put_node, put_pool, remove, take
from harness.polling import eventually, wait_until
from harness.running_controller import Running
from harness.services import NAMESPACE, Services, await_free, await_refusal, await_served, held
from svc._core.cidr import Address, Cidr
from svc.attach.datastore_ready import KEY as READINESS
from svc.datastore.api import Backend
from svc.ipam.load_balancer import LOAD_BALANCERS, attributes_of, handle_of
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, ResourceKey
from svc.model.pool import LOAD_BALANCER

pytestmark = pytest.mark.server


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
