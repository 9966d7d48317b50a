"""The controller `loadbalancer` with lost replies, conflicts, a locked datastore, and after the end of its lead."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import set_ready
from harness.ipam import document
from harness.polling import eventually, wait_until
from harness.running_controller import Running
from harness.services import Services, await_refusal, await_served, held
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.ipam.requests import Assign

pytestmark = pytest.mark.server

Json = dict[str, Any]


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
