"""Servers and credentials from the settings of a network configuration (spec section 2.2)."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from svc._core.cidr import Address
from svc.datastore.api import StoreError
from svc.datastore.etcd.tls import FILES, Tls, load_tls
from svc.imports import whole_imports
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors, without_credentials
from svc.values import dataclass

AUTHORITY = "127.0.0.1:2379"
SCHEME = "http"
PORT = 2379
DISCOVERY_SECONDS = 2.0  # for each of the two queries
SERVICES = (("_etcd-client-ssl._tcp", "https"), ("_etcd-client._tcp", "http"))  # the first service that has records is used

_SCHEMES = ("http", "https")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")  # a host name or an IP address
_EXAMPLE = 'give URLs such as "https://10.0.0.1:2379", separated by commas'

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. Its certificate must contain the host."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        """Return whether the host is an IP address, not a name."""
        try:
            return bool(Address(self.host.partition("%")[0]))
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Servers of one datastore, and their TLS settings. `tls` is None for plain http."""

    endpoints: tuple[Endpoint, ...]
    tls: Tls | None
    origin: str  # the setting that named the endpoints, with its value
    files: tuple[Path, ...]  # the TLS files that were read
    discovered: bool  # whether the endpoints come from SRV records, which may change


def read_settings(settings: Mapping[str, str]) -> Cluster:
    """Return the cluster. Empty settings count as absent. Raise CallerError with all field errors, StoreError if DNS fails."""
    given = {name: value.strip() for name, value in settings.items() if value.strip()}
    errors = FieldErrors("invalid etcd settings", Code.INVALID_NETCONF)
    urls, origin = _urls(given, errors)
    parsed = [url for url in (_parse(text, origin, errors) for text in urls) if url is not None]
    schemes = {url.scheme for url in parsed}
    if not urls and not errors.found:
        errors.add(*origin, "names no server", _EXAMPLE)
    if len(schemes) > 1:
        errors.add(*origin, "mixes http and https", "give all endpoints the same scheme")
    tls = load_tls(given, errors) if schemes == {"https"} else None
    errors.raise_if_any()
    endpoints = dict.fromkeys(Endpoint(str(url.hostname), url.port or PORT) for url in parsed)
    files = tuple(Path(given[name]) for name in FILES if name in given) if tls else ()
    return Cluster(tuple(endpoints), tls, f"{origin[0]} = {origin[1]!r}", files, origin[0] == "etcd_discovery_srv")


def _urls(given: Mapping[str, str], errors: FieldErrors) -> tuple[list[str], tuple[str, str]]:
    """Return the URLs, and the name and value of the setting that they come from."""
    endpoints, domain = given.get("etcd_endpoints", ""), given.get("etcd_discovery_srv", "")
    if endpoints and domain:
        errors.add("etcd_discovery_srv", domain, "excludes etcd_endpoints", "remove one of the two")
        errors.raise_if_any()
    _warn_of_deprecated(given, used=not endpoints and not domain)
    if domain:
        return discover(domain, errors), ("etcd_discovery_srv", domain)
    if endpoints:
        texts = [text.strip() for text in endpoints.split(",") if text.strip()]
        return texts, ("etcd_endpoints", ",".join(map(without_credentials, endpoints.split(","))))
    return _deprecated(given, errors)


def _deprecated(given: Mapping[str, str], errors: FieldErrors) -> tuple[list[str], tuple[str, str]]:
    scheme, authority = given.get("etcd_scheme", SCHEME), given.get("etcd_authority", AUTHORITY)
    if scheme not in _SCHEMES:
        errors.add("etcd_scheme", scheme, "is neither http nor https", "remove it, and set etcd_endpoints")
        return [], ("etcd_scheme", scheme)
    return [f"{scheme}://{authority}"], ("etcd_authority", authority)


def _warn_of_deprecated(given: Mapping[str, str], *, used: bool) -> None:
    for name in ("etcd_authority", "etcd_scheme"):
        if name in given:
            what = "is deprecated: set etcd_endpoints" if used else "is deprecated, and ignored beside the other settings"
            _log.warning("%s = %r %s", name, given[name], what)


def _parse(text: str, origin: tuple[str, str], errors: FieldErrors) -> SplitResult | None:
    """Parse the URL of a server. Return None and add a field error if it is invalid or has a path, query or user."""
    try:
        url = urlsplit(text)
        extra = url.path.strip("/") or url.query or url.fragment or url.username is not None
        if url.scheme in _SCHEMES and _HOST.fullmatch(url.hostname or "") and url.port != 0 and not extra:
            return url
    except ValueError:  # a port that is not a number, or unbalanced brackets
        pass
    errors.add(origin[0], text, "is not the URL of an etcd server", _EXAMPLE)
    return None


def discover(domain: str, errors: FieldErrors) -> list[str]:
    """Return the URLs in a domain's SRV records (RFC 2782): by priority, and at random by weight.

    If the domain has none, return [] and add a field error. Raise StoreError if the system's DNS servers do not answer within
    DISCOVERY_SECONDS.
    """
    with whole_imports():  # imported here, because dnspython is large and rarely needed
        from dns.exception import DNSException
        from dns.name import LabelTooLong, NameTooLong
        from dns.resolver import NXDOMAIN, NoAnswer, get_default_resolver

    for service, scheme in SERVICES:
        name = f"{service}.{domain.rstrip('.')}."
        try:
            answer: Any = get_default_resolver().resolve(name, "SRV", lifetime=DISCOVERY_SECONDS)
        except (NXDOMAIN, NoAnswer):
            continue
        except (LabelTooLong, NameTooLong):
            break
        except DNSException as error:
            raise StoreError(
                f"etcd_discovery_srv = {domain!r}: SRV records cannot be looked up: {str(error).strip()}",
                details="make a DNS server of /etc/resolv.conf answer, or set etcd_endpoints in its place",
            ) from error
        records = answer.rrset.processing_order()
        return [f"{scheme}://{str(record.target).rstrip('.')}:{record.port}" for record in records]
    services = " or ".join(service for service, _ in SERVICES)
    errors.add("etcd_discovery_srv", domain, f"has no SRV records for {services}", "create them, or set etcd_endpoints")
    return []
