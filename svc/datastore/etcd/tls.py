"""Check certificates before gRPC loads them, because the errors of gRPC name neither the file nor a fix."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from svc.model.field_errors import FieldErrors
from svc.model.shortage import shortage
from svc.tls import load_pair
from svc.values import dataclass

_SYSTEM_ROOTS = (  # the paths of several distributions
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_ROOTS, _CERTIFICATE, _KEY = FILES = ("etcd_ca_cert_file", "etcd_cert_file", "etcd_key_file")


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Certificates and key in PEM. `certificate` and `key` are None for a client without a certificate."""

    roots: bytes
    certificate: bytes | None
    key: bytes | None


def load_tls(given: Mapping[str, str], errors: FieldErrors) -> Tls | None:
    """Return the certificates and the key. If a file cannot be used, return None and add field errors."""
    before = len(errors.found)
    for name, other in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE)):
        if name in given and other not in given:
            errors.add(name, given[name], f"needs {other}", f"set {other} as well, or remove {name}")
    roots = _certificates(_ROOTS, given, errors) if _ROOTS in given else _system_roots(errors)
    certificate, key = _certificates(_CERTIFICATE, given, errors), _read(_KEY, given, errors)
    if len(errors.found) == before and certificate is not None:
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
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        errors.add(name, given[name], "holds no certificate that can be read", "name a PEM file of certificates")
    return data


def _system_roots(errors: FieldErrors) -> bytes | None:
    """Return the root certificates of the system. The default of gRPC is its own list, which administrators do not control."""
    paths = (ssl.get_default_verify_paths().cafile, *_SYSTEM_ROOTS)
    found = next((path for path in map(Path, filter(None, paths)) if path.is_file()), None)
    if found is not None:
        return found.read_bytes()
    errors.missing(_ROOTS, "set it, or install the system's root certificates (package ca-certificates)")
    return None
