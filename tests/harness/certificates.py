"""Certificate authorities for tests, and the certificates that they issue."""

import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)
_USAGES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


class Authority:
    """A certificate authority, with its certificates as PEM files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, name, self._key.public_key(), _now() + 30 * _DAY)
        self._root = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.root = folder / f"{name}.pem"
        self.root.write_bytes(self._root.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, until: datetime | None = None) -> tuple[Path, Path]:
        """Issue a certificate, and return its path and that of its key.

        `hosts` are names or addresses. The certificate is valid for a month, or until `until`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, self._name, key.public_key(), until or _now() + 30 * _DAY)
        builder = builder.add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_san(host) for host in hosts]), critical=False)
        certificate, private = self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return certificate, private


def encrypt(path: Path) -> None:
    """Encrypt a key with a password."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )


def yesterday() -> datetime:
    """Return the end of an expired certificate's validity."""
    return _now() - _DAY


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey, until: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(_name(issuer), _name(subject), key, x509.random_serial_number())
        .not_valid_before(_now() - 10 * _DAY)
        .not_valid_after(until)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _now() -> datetime:
    return datetime.now(timezone.utc)
