"""Servers found by SRV records (RFC 2782), as etcd's own tools look for them."""

from typing import Any, Protocol

from svc.datastore.api import StoreError
from svc.imports import whole_imports
from svc.model.field_errors import Faults

SECONDS = 2.0  # for each of the two queries
SERVICES = (("_etcd-client-ssl._tcp", "https"), ("_etcd-client._tcp", "http"))  # the first that has records counts


class Resolver(Protocol):
    """A `dns.resolver.Resolver`."""

    def resolve(self, qname: str, rdtype: str, *, lifetime: float) -> Any: ...


def find(domain: str, faults: Faults, resolver: Resolver | None = None) -> list[str]:
    """URLs in the order of priority, by weight at random. Empty, and a fault, when the domain has none.

    Asks the system's DNS servers unless told otherwise. StoreError when they do not answer.
    """
    with whole_imports():  # large, and few use it
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
