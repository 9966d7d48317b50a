"""etcd over TLS: trusted authorities, client certificates, and errors."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.certificates import Authority, yesterday
from harness.etcd import Cluster, ServerTls, cluster
from harness.etcd_sessions import create, session
from svc.datastore.api import StoreError
from svc.datastore.etcd.store import EtcdStore
from svc.model.keys import HandleKey, HandleQuery

pytestmark = pytest.mark.server

LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Secured:
    """A server that requires client certificates, its authority, and an unknown authority."""

    server: Cluster
    authority: Authority
    unknown: Authority
    client: tuple[Path, Path]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("etcd")
    authority, unknown = Authority(folder, "ours"), Authority(folder, "stranger")
    with serving(folder, authority, *authority.issue("server", *LOOPBACK), clients=True) as server:
        yield Secured(server, authority, unknown, authority.issue("client"))


@contextmanager
def serving(folder: Path, authority: Authority, certificate: Path, key: Path, *, clients: bool = False) -> Iterator[Cluster]:
    with cluster(folder, tls=ServerTls(certificate, key, authority.root if clients else None)) as running:
        yield running


def require_error(endpoints: str, fix: str, **settings: Path) -> None:
    """Require that reads and writes fail with an error that names the endpoint and the fix."""
    with session(endpoints, **settings) as store:
        calls: list[Callable[[], object]] = [lambda: store.get(HandleKey("h")), lambda: create(store, "h")]
        for call in calls:
            with pytest.raises(StoreError, match=r"etcd at .* does not answer") as caught:
                call()
            assert fix in caught.value.details


def test_server_and_client_authenticate_each_other(secured: Secured) -> None:
    """The endpoint may have an address or a name."""
    certificate, key = secured.client
    for number, url in enumerate((secured.server.endpoints, secured.server.endpoints.replace("127.0.0.1", "localhost"))):
        with session(url, ca_cert_file=secured.authority.root, cert_file=certificate, key_file=key) as store:
            entry = create(store, f"h.{number}")
            assert store.get(entry.key) == entry


@pytest.mark.parametrize("first", [True, False], ids=["right root first", "right root last"])
def test_every_root_of_a_file_is_trusted(secured: Secured, tmp_path: Path, first: bool) -> None:
    """Its position in the file does not matter."""
    roots = [secured.authority.root.read_bytes(), secured.unknown.root.read_bytes()]
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"a comment\n" + b"\n".join(roots if first else roots[::-1]))
    certificate, key = secured.client
    with session(secured.server.endpoints, ca_cert_file=bundle, cert_file=certificate, key_file=key) as store:
        create(store, f"bundle.{first}")


def test_server_of_an_unknown_authority_is_refused(secured: Secured) -> None:
    """svc sends no request to a server whose certificate it does not trust."""
    certificate, key = secured.client
    require_error(
        secured.server.endpoints, "etcd_ca_cert_file", ca_cert_file=secured.unknown.root, cert_file=certificate, key_file=key
    )


def test_roots_of_the_system_are_trusted_without_a_file(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority of the test is not one of them until SSL_CERT_FILE names it."""
    certificate, key = secured.client
    require_error(secured.server.endpoints, "etcd_ca_cert_file", cert_file=certificate, key_file=key)
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority.root))
    with session(secured.server.endpoints, cert_file=certificate, key_file=key) as store:
        create(store, "system")


def test_error_names_the_setting_of_a_missing_client_certificate(secured: Secured) -> None:
    """The server requires a client certificate."""
    require_error(secured.server.endpoints, "etcd_cert_file", ca_cert_file=secured.authority.root)


@pytest.mark.parametrize("defect", ["stranger's", "expired"])
def test_error_names_the_setting_of_an_invalid_client_certificate(secured: Secured, defect: str) -> None:
    """The server rejects certificates that have expired or are of an unknown authority."""
    if defect == "expired":
        certificate, key = secured.authority.issue("late", until=yesterday())
    else:
        certificate, key = secured.unknown.issue("client")
    require_error(
        secured.server.endpoints, "etcd_cert_file", ca_cert_file=secured.authority.root, cert_file=certificate, key_file=key
    )


@pytest.mark.parametrize(("name", "host", "late"), [("expired", "127.0.0.1", True), ("other", "10.1.2.3", False)])
def test_invalid_server_certificate_is_refused(tmp_path: Path, name: str, host: str, late: bool) -> None:
    """The certificate has expired, or names another host."""
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue(name, host, until=yesterday() if late else None)
    with serving(tmp_path, authority, certificate, key) as server:
        require_error(server.endpoints, "certificate", ca_cert_file=authority.root)


def test_error_names_the_scheme_that_the_server_needs(secured: Secured, tmp_path: Path) -> None:
    """The endpoint has https for a server without TLS, or http for one with TLS."""
    with cluster(tmp_path) as plain:
        require_error(plain.endpoints.replace("http:", "https:"), "http", ca_cert_file=secured.authority.root)
    require_error(secured.server.endpoints.replace("https:", "http:"), "https")


def test_certificate_of_each_server_must_name_its_host(tmp_path: Path) -> None:
    """One of two servers has a certificate for another host, so all calls use the other server."""
    authority = Authority(tmp_path, "ours")
    with serving(tmp_path, authority, *authority.issue("good", "localhost")) as good:
        (tmp_path / "bad").mkdir()
        with serving(tmp_path / "bad", authority, *authority.issue("bad", "elsewhere.test")) as bad:
            urls = f"{bad.endpoints.replace('127.0.0.1', 'localhost')},{good.endpoints.replace('127.0.0.1', 'localhost')}"
            for number in range(6):
                with session(urls, ca_cert_file=authority.root) as store:
                    entry = create(store, f"h{number}")
                    assert store.get(entry.key) == entry


def test_certificate_may_name_the_ipv6_address_of_a_server(tmp_path: Path) -> None:
    """The address has brackets in a URL, but not in a certificate."""
    authority = Authority(tmp_path, "ours")
    tls = ServerTls(*authority.issue("server", "::1"))
    with cluster(tmp_path, tls=tls, host="::1") as server, session(server.endpoints, ca_cert_file=authority.root) as store:
        assert server.endpoints.startswith("https://[::1]:")
        create(store, "h")


def test_session_is_not_current_after_its_certificate_was_replaced(secured: Secured, tmp_path: Path) -> None:
    """A new session reads the new files. The old session still works."""
    files = {"cert_file": tmp_path / "client.pem", "key_file": tmp_path / "client.key"}
    for path, source in zip(files.values(), secured.client, strict=True):
        path.write_bytes(source.read_bytes())
    with session(secured.server.endpoints, ca_cert_file=secured.authority.root, **files) as store:
        create(store, "before")
        assert store.is_current()
        for path, source in zip(files.values(), secured.authority.issue("renewed"), strict=True):
            path.write_bytes(source.read_bytes())
        assert not store.is_current()
        assert store.get(HandleKey("before"))


def test_error_names_the_missing_rights_of_a_user(secured: Secured) -> None:
    """The user is the common name of the certificate. svc does not retry a request that the server denies."""
    root = dict(zip(("cert", "key"), secured.authority.issue("root"), strict=True))
    client = dict(zip(("cert", "key"), secured.client, strict=True))
    identity = [f"--cacert={secured.authority.root}", f"--cert={root['cert']}", f"--key={root['key']}"]

    def as_user(files: dict[str, Path]) -> AbstractContextManager[EtcdStore]:
        return session(
            secured.server.endpoints, ca_cert_file=secured.authority.root, cert_file=files["cert"], key_file=files["key"]
        )

    for command in ("user add root:unused", "user grant-role root root", "user add client:unused", "auth enable"):
        secured.server.ctl(*identity, *command.split())
    try:
        with as_user(client) as store:
            with pytest.raises(StoreError, match="refused a request: etcdserver: permission denied") as caught:
                create(store, "h")
            assert "read and write on all keys below the key root" in caught.value.details
            with pytest.raises(StoreError, match="permission denied"):
                next(store.watch(HandleQuery()))
            assert store.generations(("IPPool",)) != store.generations(("IPPool",)) != store.generations(("IPPool",))
        with as_user(root) as store:
            create(store, "by-root")
    finally:
        secured.server.ctl(*identity, "auth", "disable")
