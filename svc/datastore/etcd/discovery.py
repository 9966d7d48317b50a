"""Discovery of servers by SRV records (RFC 2782), with the service names of etcd's tools."""

from typing import Any, Protocol

from svc.datastore.api import StoreError
from svc.imports import whole_imports
from svc.model.field_errors import Faults

SECONDS = 2.0  # for each of the two queries
SERVICES = (("_etcd-client-ssl._tcp", "https"), ("_etcd-client._tcp", "http"))  # the first service that has records is used


class Resolver(Protocol):
    """Interface of `dns.resolver.Resolver`."""

    def resolve(self, qname: str, rdtype: str, *, lifetime: float) -> Any: ...


def find(domain: str, faults: Faults, resolver: Resolver | None = None) -> list[str]:
    """Return the servers' URLs by priority, and at random by weight. If the domain has none, return [] and add a field error.

    Without `resolver`, ask the DNS servers of the system. Raise StoreError if they do not answer. A query takes at most
    SECONDS.
    """
    with whole_imports():  # imported here, because dnspython is large and rarely needed
        from dns.exception import DNSException
        from dns.name import LabelTooLong, NameTooLong
        from dns.resolver import NXDOMAIN, NoAnswer, get_default_resolver

    for service, scheme in SERVICES:
        try:
            answer: Any = (resolver or get_default_resolver()).resolve(
                f"{service}.{domain.rstrip('.')}.", "SRV", lifetime=SECONDS
            )
        except (NXDOMAIN, NoAnswer):
            continue
        except (LabelTooLong, NameTooLong):
            break
        except DNSException as error:
            raise StoreError(
                f"etcd_discovery_srv = {domain!r}: SRV records cannot be looked up: {str(error).strip()}",
                details="make a DNS server of /etc/resolv.conf answer, or set etcd_endpoints in its place",
            ) from error
        return [f"{scheme}://{_host(record)}:{record.port}" for record in answer.rrset.processing_order()]
    services = " or ".join(service for service, _ in SERVICES)
    faults.add("etcd_discovery_srv", domain, f"has no SRV records for {services}", "create them, or set etcd_endpoints")
    return []


def _host(record: Any) -> str:
    return str(record.target).rstrip(".")
