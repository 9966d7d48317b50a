"""Services of type LoadBalancer on a real API server, and the addresses that a datastore records for them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from harness.datastores import Site, session, set_ready
from harness.ipam import holdings, put_pool
from harness.kube import Kube
from harness.polling import eventually, wait_until
from svc.datastore.api import Backend
from svc.ipam.load_balancer import handle_of
from svc.model.pool import LOAD_BALANCER

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
NAMESPACE = "c-services"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"


class Services:
    """The services of the test's namespace."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def make(self, name: str = "web", annotations: Json | None = None, **spec: Any) -> Json:
        notes = {f"svc.internal/{note}": json.dumps(wanted) for note, wanted in (annotations or {}).items()}
        body = {
            "metadata": {"name": name, "annotations": notes},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], **spec},
        }
        return self.kube.call("POST", SERVICES, body)

    def change(self, name: str = "web", annotations: Json | None = None, **spec: Any) -> None:
        notes = {f"svc.internal/{note}": wanted and json.dumps(wanted) for note, wanted in (annotations or {}).items()}
        self.kube.call("PATCH", f"{SERVICES}/{name}", {"metadata": {"annotations": notes}, "spec": spec}, MERGE)

    def show(self, *addresses: str, name: str = "web") -> None:
        """Set the status, as another program may do."""
        status = {"loadBalancer": {"ingress": [{"ip": address} for address in addresses]}}
        self.kube.call("PATCH", f"{SERVICES}/{name}/status", {"status": status}, MERGE)

    def get(self, name: str = "web") -> Json:
        return self.kube.call("GET", f"{SERVICES}/{name}")

    def delete(self, name: str = "web") -> None:
        self.kube.call("DELETE", f"{SERVICES}/{name}")

    def shown(self, name: str = "web") -> tuple[str, ...]:
        ingress = self.get(name)["status"]["loadBalancer"].get("ingress") or ()
        return tuple(entry.get("ip", "") for entry in ingress)

    def handle(self, name: str = "web") -> str:
        return handle_of(NAMESPACE, name, self.get(name)["metadata"]["uid"])

    def clear(self) -> None:
        for each in self.kube.call("GET", SERVICES)["items"]:
            self.delete(each["metadata"]["name"])
        self.kube.uproot(f"namespaces/{NAMESPACE}")


@contextmanager
def in_namespace(kube: Kube) -> Iterator[Services]:
    """Yield the services of a new namespace, and delete them at the end."""
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": {"team": "red"}}})
    made = Services(kube)
    try:
        yield made
    finally:
        made.clear()


@contextmanager
def store_for_services(site: Site) -> Iterator[Backend]:
    """Yield a ready datastore with pools for services and one for workloads, and clear it at the end."""
    with session(site) as made:
        set_ready(made)
        put_pool(made, "lb4", "10.66.0.0/28", blockSize=30, allowedUses=[LOAD_BALANCER])
        put_pool(made, "lb4b", "10.67.0.0/29", blockSize=30, allowedUses=[LOAD_BALANCER], assignmentMode="Manual")
        put_pool(made, "lb6", "fd66::/124", blockSize=126, allowedUses=[LOAD_BALANCER])
        put_pool(made, "pods", "10.65.0.0/28", blockSize=30)
        try:
            yield made
        finally:
            site.clear()


def held(store: Backend) -> dict[str, set[str]]:
    """Return the addresses of each handle. Read again while a write comes between the reads."""
    found: list[dict[str, set[str]]] = []

    def is_sound() -> bool:
        with suppress(AssertionError):
            found.append({handle: set(map(str, addresses)) for handle, addresses in holdings(store).items()})
        return bool(found)

    wait_until(is_sound)
    return found[0]


def await_served(services: Services, store: Backend, *wanted: str, name: str = "web") -> None:
    """Wait until the service holds exactly these addresses, and its status shows them."""

    def state() -> Any:
        return set(services.shown(name)), held(store).get(services.handle(name), set())

    assert eventually(state, lambda found: found == (set(wanted), set(wanted))) == (set(wanted), set(wanted))


def await_free(store: Backend) -> None:
    """Wait until no service has an address."""
    assert eventually(lambda: held(store), lambda found: found == {}) == {}


def await_refusal(caplog: pytest.LogCaptureFixture, text: str, name: str = "web") -> None:
    """Wait until the controller has logged this reason for trying the service again."""
    begin = f"controller loadbalancer: {NAMESPACE}/{name} is tried again in "
    wait_until(lambda: any(begin in line and text in line for line in caplog.messages))
