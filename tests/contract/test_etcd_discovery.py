"""Discovery of etcd servers by the SRV records of a real DNS server on loopback."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import dns.resolver
import pytest
from dns.exception import Timeout
from dns.resolver import Resolver

from harness.certificates import Authority
from harness.etcd import TIMEOUT_SECONDS, Cluster, ServerTls, cluster, free_ports
from harness.etcd_sessions import create
from svc.datastore.api import StoreError
from svc.datastore.etcd import settings
from svc.datastore.etcd.store import EtcdStore
from svc.model.errors import CallerError
from svc.model.field_errors import FieldErrors
from svc.names import DEFAULT

pytestmark = pytest.mark.server

PLAIN, SECURE = "_etcd-client._tcp", "_etcd-client-ssl._tcp"


def resolver(port: int) -> Resolver:
    configured = Resolver(configure=False)
    configured.nameservers = ["127.0.0.1"]
    configured.port = port
    return configured


@contextmanager
def dns_server(*records: str, port: int = 0) -> Iterator[Resolver]:
    """Start a server with SRV records in dnsmasq's format: name, target, port, priority, weight."""
    if shutil.which("dnsmasq") is None:
        pytest.skip("needs dnsmasq (Debian: dnsmasq-base)")
    port = port or free_ports(1)[0]
    command = [
        "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv", "--no-hosts",
        "--listen-address=127.0.0.1", "--bind-interfaces", f"--port={port}", "--local=/test/",
        *(f"--srv-host={record}" for record in records),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        _await(resolver(port), process)
        yield resolver(port)
    finally:
        process.kill()
        process.communicate()


def _await(dns_resolver: Resolver, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            dns_resolver.resolve("ready.test.", "SRV", lifetime=0.2, raise_on_no_answer=False)
        except Timeout:
            assert process.poll() is None
            assert time.monotonic() < until
        except Exception:
            return
        else:
            return


@pytest.fixture(autouse=True)
def system_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the resolver of the system after the test."""
    monkeypatch.setattr(dns.resolver, "default_resolver", None)


def opened(dns_resolver: Resolver, domain: str = "cluster.test", **given: str) -> EtcdStore:
    dns.resolver.default_resolver = dns_resolver
    return EtcdStore({"kind": "etcdv3", "etcd_discovery_srv": domain, **given}, DEFAULT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


def srv(service: str, port: int, priority: int = 0, target: str = "localhost") -> str:
    return f"{service}.cluster.test,{target},{port},{priority},10"


def test_records_name_the_servers(server: Cluster) -> None:
    """svc skips a server that is not running, in any order."""
    with dns_server(srv(PLAIN, 1), srv(PLAIN, server.members[0].ports[0])) as dns_resolver:
        for domain in ("cluster.test", "cluster.test."):
            with closing(opened(dns_resolver, domain)) as store:
                entry = create(store, domain)
                assert store.get(entry.key) == entry


def test_records_for_tls_take_precedence(tmp_path: Path) -> None:
    """The server's certificate must name the target of the record."""
    authority = Authority(tmp_path, "ours")
    with cluster(tmp_path, tls=ServerTls(*authority.issue("server", "localhost"))) as server:
        with dns_server(srv(PLAIN, 1), srv(SECURE, server.members[0].ports[0])) as dns_resolver:
            with closing(opened(dns_resolver, etcd_ca_cert_file=str(authority.root))) as store:
                create(store, "h")


def test_records_are_used_in_the_order_of_their_priority() -> None:
    """A lower number comes first."""
    with dns_server(srv(PLAIN, 3, 30), srv(PLAIN, 1, 10), srv(PLAIN, 2, 20, "other.test")) as dns_resolver:
        dns.resolver.default_resolver = dns_resolver
        found = settings.discover("cluster.test", _no_errors())
    assert found == ["http://localhost:1", "http://other.test:2", "http://localhost:3"]


def _no_errors() -> FieldErrors:
    return FieldErrors("nothing", CallerError.code)


@pytest.mark.parametrize("domain", ["empty.test", "x" * 64])
def test_domains_without_records_are_refused(domain: str) -> None:
    """The error names the setting, the domain and the fix."""
    with (
        dns_server(srv(PLAIN, 1)) as dns_resolver,
        pytest.raises(CallerError, match=r"etcd_discovery_srv = .* has no SRV records") as caught,
    ):
        opened(dns_resolver, domain)
    assert "etcd_endpoints" in caught.value.details


def test_error_names_the_setting_if_dns_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is not an error of the configuration, because the DNS server may answer later."""
    monkeypatch.setattr(settings, "DISCOVERY_SECONDS", 0.5)
    with pytest.raises(StoreError, match=r"etcd_discovery_srv = 'cluster\.test': SRV records cannot be looked up") as caught:
        opened(resolver(free_ports(1)[0]))
    assert "resolv.conf" in caught.value.details


def test_records_are_looked_up_again_if_no_server_answers(server: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The cluster has moved. After a failed call, the next one finds its new servers if DNS has their records."""
    (port,) = free_ports(1)
    with dns_server(srv(PLAIN, 1), port=port) as dns_resolver:
        store = opened(dns_resolver)
    with closing(store):
        for _ in range(3):
            with pytest.raises(StoreError, match="does not answer"):
                create(store, "moved")
        assert caplog.text.count("cannot be looked up again") == 1
        with dns_server(srv(PLAIN, server.members[0].ports[0]), port=port):
            entry = create(store, "moved")
            assert store.get(entry.key) == entry
