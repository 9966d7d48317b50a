"""Servers and credentials from the settings of a network configuration (spec section 2.2)."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from svc._core.cidr import Address
from svc.datastore.api import StoreError
from svc.imports import whole_imports
from svc.model.errors import Code
from svc.model.field_errors import FieldError, FieldErrors, without_secrets_in_urls
from svc.model.shortage import shortage
from svc.values import dataclass

AUTHORITY = "127.0.0.1:2379"
SCHEME = "http"
PORT = 2379
DISCOVERY_SECONDS = 2.0  # for each of the two queries
SERVICES = (("_etcd-client-ssl._tcp", "https"), ("_etcd-client._tcp", "http"))  # the first service that has records is used

_SCHEMES = ("http", "https")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")  # a host name or an IP address
_EXAMPLE = 'give URLs such as "https://10.0.0.1:2379", separated by commas'
_SYSTEM_ROOTS = (  # the paths of several distributions
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_ROOTS, _CERTIFICATE, _KEY = _FILES = ("etcd_ca_cert_file", "etcd_cert_file", "etcd_key_file")

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


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Certificates and key in PEM. `certificate` and `key` are None for a client without a certificate."""

    roots: bytes
    certificate: bytes | None
    key: bytes | None


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
    tls = _load_tls(given, errors) if schemes == {"https"} else None
    errors.raise_if_any()
    endpoints = dict.fromkeys(Endpoint(str(url.hostname), url.port or PORT) for url in parsed)
    files = tuple(Path(given[name]) for name in _FILES if name in given) if tls else ()
    return Cluster(tuple(endpoints), tls, f"{origin[0]} = {origin[1]!r}", files, origin[0] == "etcd_discovery_srv")


def require_urls(settings: Mapping[str, str]) -> None:
    """Raise CallerError if the settings name servers by something else than their URLs. Read no file, and ask no server."""
    found = url_errors(settings.get("etcd_endpoints", ""))
    FieldErrors("invalid etcd settings", Code.INVALID_NETCONF, found).raise_if_any()


def url_errors(endpoints: str) -> list[FieldError]:
    """Return the errors of URLs that commas separate."""
    errors = FieldErrors("", Code.INVALID_NETCONF)
    for text in _listed(endpoints):
        _parse(text, ("etcd_endpoints", ""), errors)
    return errors.found


def _listed(endpoints: str) -> list[str]:
    return [text.strip() for text in endpoints.split(",") if text.strip()]


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
        return _listed(endpoints), ("etcd_endpoints", without_secrets_in_urls(endpoints))
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
    reason = "has a user or password, which svc does not send" if "@" in text else "is not the URL of an etcd server"
    errors.add(origin[0], text, reason, _EXAMPLE)
    return None


def discover(domain: str, errors: FieldErrors) -> list[str]:
    """Return the URLs in a domain's SRV records (RFC 2782), or [] with a field error. Raise StoreError if DNS fails."""
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


def _load_tls(given: Mapping[str, str], errors: FieldErrors) -> Tls | None:
    """Return the certificates and the key. If a file cannot be used, return None and add field errors.

    They are checked here, because the errors of gRPC name neither the file nor a fix."""
    before = len(errors.found)
    for name, other in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE)):
        if name in given and other not in given:
            errors.add(name, given[name], f"needs {other}", f"set {other} as well, or remove {name}")
    roots = _certificates(_ROOTS, given, errors) if _ROOTS in given else _system_roots(errors)
    certificate, key = _certificates(_CERTIFICATE, given, errors), _read(_KEY, given, errors)
    if len(errors.found) == before and certificate is not None:
        import ssl

        from svc.tls import load_pair

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if problem := load_pair(context, given[_CERTIFICATE], given[_KEY]):
            remedy = f"name the private key of {_CERTIFICATE} = {given[_CERTIFICATE]!r}, in PEM and without a password"
            errors.add(_KEY, given[_KEY], f"is not a key for the certificate: it {problem}", remedy)
    return Tls(roots or b"", certificate, key) if len(errors.found) == before else None


def _read(name: str, given: Mapping[str, str], errors: FieldErrors) -> bytes | None:
    if name not in given:
        return None
    try:
        return Path(given[name]).read_bytes()
    except OSError as error:
        if lack := shortage(error):
            raise lack from error
        errors.add(name, given[name], f"cannot be read: {error.strerror}", "name a PEM file that this process may read")
        return None


def _certificates(name: str, given: Mapping[str, str], errors: FieldErrors) -> bytes | None:
    """Return the content of a file of one or more certificates. Add a field error if it has none."""
    data = _read(name, given, errors)
    if data is None:
        return None
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        errors.add(name, given[name], "holds no certificate that can be read", "name a PEM file of certificates")
    return data


def _system_roots(errors: FieldErrors) -> bytes | None:
    """Return the root certificates of the system. The default of gRPC is its own list, which administrators do not control."""
    import ssl

    paths = (ssl.get_default_verify_paths().cafile, *_SYSTEM_ROOTS)
    found = next((path for path in map(Path, filter(None, paths)) if path.is_file()), None)
    if found is not None:
        return found.read_bytes()
    errors.missing(_ROOTS, "set it, or install the system's root certificates (package ca-certificates)")
    return None
