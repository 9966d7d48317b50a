"""Write the addresses of a service into its status."""

from collections.abc import Iterable
from typing import Any

from svc import deadline
from svc._core.cidr import Address
from svc.attach.datastore_ready import DatastoreReadiness
from svc.controllers.controller import Shared
from svc.controllers.loadbalancer.services import ingress_of, shown_addresses
from svc.datastore.orch.client import segment

Json = dict[str, Any]

_MERGE_PATCH = "application/merge-patch+json"


def service_path(service: str) -> str:
    """Return the path of a service (NAMESPACE/NAME)."""
    namespace, _, name = service.partition("/")
    return f"/api/v1/namespaces/{segment(namespace)}/services/{segment(name)}"


class ServiceStatus:
    """The status of services, written only while this process leads and the datastore is ready."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._readiness = DatastoreReadiness(shared.store)

    def show(self, service: Json, addresses: Iterable[Address]) -> Json:
        """Have the status show exactly these addresses. Return the service as it is then. Raise SvcError.

        The write fails if anything about the service has changed since it was read.
        """
        shown = dict(zip(shown_addresses(service), ingress_of(service), strict=True))
        wanted = [str(address) for address in addresses]
        if [*shown_addresses(service)] == wanted:
            return service
        return self._write(service, [shown.get(text, {"ip": text}) for text in wanted])

    def hide(self, service: Json, addresses: Iterable[Address]) -> Json:
        """Have the status show none of these addresses. Entries of other programs stay. As `show` otherwise."""
        hidden = {str(address) for address in addresses}
        pairs = list(zip(shown_addresses(service), ingress_of(service), strict=True))
        left = [entry for text, entry in pairs if text not in hidden]
        return self._write(service, left) if len(left) < len(pairs) else service

    def _write(self, service: Json, ingress: list[Json]) -> Json:
        metadata = service["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]},
            "status": {"loadBalancer": {"ingress": ingress or None}},
        }
        self._readiness.require()
        with deadline.limit(self._shared.election.require()):
            path = service_path(f"{metadata['namespace']}/{metadata['name']}")
            written = self._shared.client.patch(f"{path}/status", body, _MERGE_PATCH)
        self._shared.tally.count_written(1)
        return written
