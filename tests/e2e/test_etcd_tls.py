"""etcd over TLS: whom we trust, who we are, and what is said when that does not work out."""

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

LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Secured:
    """A server that demands client certificates, and the authorities of this world."""

    server: Cluster
    ours: Authority
    stranger: Authority
    client: tuple[Path, Path]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("etcd")
    ours, stranger = Authority(folder, "ours"), Authority(folder, "stranger")
    with serving(folder, ours, *ours.issue("server", *LOOPBACK), clients=True) as server:
        yield Secured(server, ours, stranger, ours.issue("client"))


@contextmanager
def serving(folder: Path, authority: Authority, certificate: Path, key: Path, *, clients: bool = False) -> Iterator[Cluster]:
    with cluster(folder, tls=ServerTls(certificate, key, authority.root if clients else None)) as running:
        yield running


def demand_refusal(endpoints: str, remedy: str, **settings: Path) -> None:
    """Both reading and writing fail with one error that names the endpoint and the remedy."""
    with session(endpoints, **settings) as store:
        calls: list[Callable[[], object]] = [lambda: store.get(HandleKey("h")), lambda: create(store, "h")]
        for call in calls:
            with pytest.raises(StoreError, match=r"etcd at .* does not answer") as caught:
                call()
            assert remedy in caught.value.details


def test_both_sides_identify_themselves(secured: Secured) -> None:
    """By address and by name; reads, writes and watches."""
    certificate, key = secured.client
    for number, url in enumerate((secured.server.endpoints, secured.server.endpoints.replace("127.0.0.1", "localhost"))):
        with session(url, ca_cert_file=secured.ours.root, cert_file=certificate, key_file=key) as store:
            entry = create(store, f"h.{number}")
            assert store.get(entry.key) == entry


@pytest.mark.parametrize("first", [True, False], ids=["right root first", "right root last"])
def test_every_root_of_a_file_is_trusted(secured: Secured, tmp_path: Path, first: bool) -> None:
    """Wherever it stands."""
    roots = [secured.ours.root.read_bytes(), secured.stranger.root.read_bytes()]
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"a comment\n" + b"\n".join(roots if first else roots[::-1]))
    certificate, key = secured.client
    with session(secured.server.endpoints, ca_cert_file=bundle, cert_file=certificate, key_file=key) as store:
        create(store, f"bundle.{first}")


def test_another_root_is_refused(secured: Secured) -> None:
    """We do not speak to a server that we do not know."""
    certificate, key = secured.client
    demand_refusal(
        secured.server.endpoints, "etcd_ca_cert_file", ca_cert_file=secured.stranger.root, cert_file=certificate, key_file=key
    )


def test_the_systems_roots_serve_without_a_file(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not know the test's authority, until it is made one of them."""
    certificate, key = secured.client
    demand_refusal(secured.server.endpoints, "etcd_ca_cert_file", cert_file=certificate, key_file=key)
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.ours.root))
    with session(secured.server.endpoints, cert_file=certificate, key_file=key) as store:
        create(store, "system")


def test_a_missing_client_certificate_is_told(secured: Secured) -> None:
    """With the settings that would give one."""
    demand_refusal(secured.server.endpoints, "etcd_cert_file", ca_cert_file=secured.ours.root)


@pytest.mark.parametrize("fault", ["stranger's", "expired"])
def test_a_bad_client_certificate_is_told(secured: Secured, fault: str) -> None:
    """The server takes it no more than none."""
    if fault == "expired":
        certificate, key = secured.ours.issue("late", until=yesterday())
    else:
        certificate, key = secured.stranger.issue("client")
    demand_refusal(
        secured.server.endpoints, "etcd_cert_file", ca_cert_file=secured.ours.root, cert_file=certificate, key_file=key
    )


@pytest.mark.parametrize(("name", "host", "late"), [("expired", "127.0.0.1", True), ("other", "10.1.2.3", False)])
def test_a_bad_server_certificate_is_refused(tmp_path: Path, name: str, host: str, late: bool) -> None:
    """It has expired, or names another host."""
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue(name, host, until=yesterday() if late else None)
    with serving(tmp_path, authority, certificate, key) as server:
        demand_refusal(server.endpoints, "certificate", ca_cert_file=authority.root)


def test_schemes_must_fit_the_server(secured: Secured, tmp_path: Path) -> None:
    """TLS to a plain server, and the other way round."""
    with cluster(tmp_path) as plain:
        demand_refusal(plain.endpoints.replace("http:", "https:"), "http", ca_cert_file=secured.ours.root)
    demand_refusal(secured.server.endpoints.replace("https:", "http:"), "https")


def test_each_server_is_held_to_its_own_name(tmp_path: Path) -> None:
    """Of two, one shows a certificate for another host: all calls end at the good one."""
    authority = Authority(tmp_path, "ours")
    with serving(tmp_path, authority, *authority.issue("good", "localhost")) as good:
        (tmp_path / "bad").mkdir()
        with serving(tmp_path / "bad", authority, *authority.issue("bad", "elsewhere.test")) as bad:
            urls = f"{bad.endpoints.replace('127.0.0.1', 'localhost')},{good.endpoints.replace('127.0.0.1', 'localhost')}"
            for number in range(6):
                with session(urls, ca_cert_file=authority.root) as store:
                    entry = create(store, f"h{number}")
                    assert store.get(entry.key) == entry


def test_ipv6_servers_are_known_by_their_address(tmp_path: Path) -> None:
    """Which stands in brackets in a URL, and without them in a certificate."""
    authority = Authority(tmp_path, "ours")
    tls = ServerTls(*authority.issue("server", "::1"))
    with cluster(tmp_path, tls=tls, host="::1") as server, session(server.endpoints, ca_cert_file=authority.root) as store:
        assert server.endpoints.startswith("https://[::1]:")
        create(store, "h")


def test_replaced_certificates_are_noticed(secured: Secured, tmp_path: Path) -> None:
    """A new session reads the new files."""
    files = {"cert_file": tmp_path / "client.pem", "key_file": tmp_path / "client.key"}
    for path, source in zip(files.values(), secured.client, strict=True):
        path.write_bytes(source.read_bytes())
    with session(secured.server.endpoints, ca_cert_file=secured.ours.root, **files) as store:
        create(store, "before")
        assert store.is_current()
        for path, source in zip(files.values(), secured.ours.issue("renewed"), strict=True):
            path.write_bytes(source.read_bytes())
        assert not store.is_current()
        assert store.get(HandleKey("before"))


def test_a_user_without_rights_is_told(secured: Secured) -> None:
    """The certificate's common name is the user; what it lacks is said, without trying again and again."""
    root = dict(zip(("cert", "key"), secured.ours.issue("root"), strict=True))
    client = dict(zip(("cert", "key"), secured.client, strict=True))
    identity = [f"--cacert={secured.ours.root}", f"--cert={root['cert']}", f"--key={root['key']}"]

    def as_user(files: dict[str, Path]) -> AbstractContextManager[EtcdStore]:
        return session(secured.server.endpoints, ca_cert_file=secured.ours.root, cert_file=files["cert"], key_file=files["key"])

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
