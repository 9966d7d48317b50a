"""Section 2.2: access to etcd, and the errors of failed access."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from harness.certificates import Authority
from harness.enter_netns import entered
from harness.etcd import Cluster, ServerTls, cluster
from harness.netns import Netns
from harness.node import BIN, POOL4, Node, netconf
from harness.pod import Pod
from harness.port_forward import PortForward
from harness.spec_rows import field, statement

pytestmark = pytest.mark.root

MakeSandbox = Callable[[], Netns]
DEAD = "http://127.0.0.1:1"
DOMAIN = "cluster.test"
SRV = "_etcd-client._tcp"
FLAGS = {"cacert": "ca_cert", "cert": "cert", "key": "key"}  # options of etcdctl, and the equivalent fields
TIMEOUT_SECONDS = 20.0  # seconds


@dataclass(frozen=True)
class World:
    """A node that reaches two servers:

    one without TLS, also at the default port of etcd, and one that requires client certificates.
    """

    node: Node
    plain: Cluster
    secure: Cluster
    files: dict[str, str]  # the fields for the second server

    def pod(self, sandbox: Netns, **options: str) -> Pod:
        return Pod(self.node, sandbox, "c1", network(**options))

    def furnish(self, **options: str) -> None:
        """Set up a ready datastore with a node and a pool."""
        file = self.node.directory / "netconf.json"
        file.write_text(json.dumps(network(**options)))
        ctl = partial(self.node.svcctl, "--netconf", str(file))
        ctl("clusterinfo", "init")
        ctl("node", "apply", "node1")
        pool = {"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": "pool4"}, "spec": {"cidr": POOL4}}
        ctl("pool", "apply", "-f", "-", stdin=json.dumps(pool))

    def handles(self) -> tuple[str, str]:
        """Return the handles on the server without TLS, and those on the other one."""
        flags = [f"--{name}={self.files[f'etcd_{field}_file']}" for name, field in FLAGS.items()]
        get = ("get", "--prefix", "--keys-only", "/svc/ipam/v2/handle/")
        return self.plain.ctl(*get).strip(), self.secure.ctl(*flags, *get).strip()


def network(**options: str) -> dict[str, Any]:
    config = netconf(nodename="node1", **options)
    del config["datastore_type"]  # it is the default
    return config


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("etcd")
    trusted, other = Authority(folder, "ours"), Authority(folder, "other")
    bundle = folder / "bundle.pem"
    bundle.write_bytes(other.root.read_bytes() + trusted.root.read_bytes())
    (folder / "plain").mkdir()
    tls = ServerTls(*trusted.issue("server", "127.0.0.1"), trusted.root)
    certificate, key = trusted.issue("client")
    files = {"etcd_ca_cert_file": str(bundle), "etcd_cert_file": str(certificate), "etcd_key_file": str(key)}
    with cluster(folder, tls=tls) as secure, cluster(folder / "plain") as plain, Node(folder / "node", agent=False) as node:
        world = World(node, plain, secure, files)
        world.furnish(etcd_endpoints=plain.endpoints)
        world.furnish(etcd_endpoints=secure.endpoints, **files)
        with ways(node, plain, secure), dns(node, folder, plain):
            yield world
            node.stop_agent()


@contextmanager
def ways(node: Node, plain: Cluster, secure: Cluster) -> Iterator[None]:
    (port,), (other,) = ([member.ports[0] for member in each.members] for each in (plain, secure))
    made = [PortForward(node.netns, port), PortForward(node.netns, other), PortForward(node.netns, port, inside=2379)]
    try:
        yield
    finally:
        for way in made:
            way.close()


@contextmanager
def dns(node: Node, folder: Path, plain: Cluster) -> Iterator[None]:
    """Run a name server on the node with a record for the server without TLS, and an agent that uses it."""
    if which("dnsmasq") is None:
        pytest.skip("needs dnsmasq (Debian: dnsmasq-base)")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    with entered(node.netns):
        server = subprocess.Popen([
            "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv",
            "--no-hosts", "--listen-address=127.0.0.1", "--bind-interfaces", "--local=/test/",
            f"--srv-host={SRV}.{DOMAIN},localhost,{plain.members[0].ports[0]},0,10",
        ], stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        _await(node)
        script = f'mount --bind {folder}/resolv.conf /etc/resolv.conf && exec {BIN}/svc-agent "$@"'
        node.start_agent("unshare", "--mount", "sh", "-c", script, "sh")
        yield
    finally:
        server.kill()
        server.wait()


def _await(node: Node) -> None:
    """Wait until the name server listens."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while ":53 " not in node.netns.run("ss", "-Hltn").stdout:
        assert time.monotonic() < until
        time.sleep(0.02)


def attach(world: World, sandbox: Netns, *, secure: bool = False, **options: str) -> None:
    """Add and delete a pod. Require that its handle is on the right server while it exists."""
    pod = world.pod(sandbox, **options)
    pod.add()
    assert [bool(each) for each in world.handles()] == [not secure, secure]
    pod.delete()
    assert world.handles() == ("", "")


def refuse(world: World, sandbox: Netns, code: int, *words: str, **options: str) -> None:
    """Require that the ADD fails with this error."""
    error = world.pod(sandbox, **options).failed("ADD").output
    assert error["code"] == code, error
    for text in words:
        assert text in error["msg"] + error["details"]


@field(
    "etcd_endpoints",
    "The servers are tried in order, from a random one on, until one replies.",
    choice="White space and a slash at the end of a URL are ignored. A cluster has one scheme, `http` or `https`.",
)
def test_endpoints_are_tried_until_one_replies(world: World, sandbox: MakeSandbox) -> None:
    attach(world, sandbox(), etcd_endpoints=f"{DEAD}, {world.plain.endpoints}/")
    refuse(world, sandbox(), 104, "etcd at 127.0.0.1:1", "does not answer", etcd_endpoints=DEAD)
    refuse(world, sandbox(), 104, "gone.test", "known to the system's resolver", etcd_endpoints="http://gone.test:2379")
    refuse(world, sandbox(), 7, "etcd_endpoints", etcd_endpoints="ftp://127.0.0.1:1")


@field(
    "etcd_discovery_srv",
    "The records `_etcd-client-ssl._tcp` of the domain, or if it has none `_etcd-client._tcp`, name the servers. They are"
    " looked up again if no server replies.",
)
def test_servers_are_found_through_the_domain(world: World, sandbox: MakeSandbox) -> None:
    attach(world, sandbox(), etcd_discovery_srv=DOMAIN)
    refuse(world, sandbox(), 7, "empty.test", "has no SRV records", etcd_discovery_srv="empty.test")


@statement(
    "7",
    "7.2",
    "`etcd_discovery_srv` and `etcd_endpoints` exclude each other.",
    "Code 7; nothing is attached.",
    choice="This applies to other datastores too, because such a configuration is always a mistake.",
)
def test_endpoints_together_with_a_domain_are_refused(world: World, sandbox: MakeSandbox) -> None:
    both = {"etcd_discovery_srv": DOMAIN, "etcd_endpoints": world.plain.endpoints}
    refuse(world, sandbox(), 7, "etcd_discovery_srv", "excludes etcd_endpoints", "remove one of the two", **both)


@field(
    "etcd_key_file", "Read for each new session; a replaced file starts one.", choice="Key and certificate are given together."
)
@field("etcd_cert_file", "Read like the key.")
@statement(
    "5",
    "5.1",
    "The plugin shows etcd the certificate of `etcd_cert_file` and `etcd_key_file`, and trusts servers by `etcd_ca_cert_file`.",
    "With `https` endpoints svc uses TLS. Each error names the setting to correct.",
)
def test_client_and_server_verify_certificates(world: World, sandbox: MakeSandbox) -> None:
    servers = {"etcd_endpoints": world.secure.endpoints}
    authority = {"etcd_ca_cert_file": world.files["etcd_ca_cert_file"]}
    attach(world, sandbox(), secure=True, **servers, **world.files)
    refuse(world, sandbox(), 104, "etcd_cert_file", **servers, **authority)
    for name, other in (("etcd_cert_file", "etcd_key_file"), ("etcd_key_file", "etcd_cert_file")):
        given = {name: world.files[name]}
        refuse(world, sandbox(), 7, f"is of no use without {other}", **servers, **authority, **given)
    refuse(world, sandbox(), 7, "etcd_key_file", "/nowhere", **servers, **world.files | {"etcd_key_file": "/nowhere"})


@field(
    "etcd_ca_cert_file",
    "Each certificate in it is trusted. In the test the server's authority is the second one of the file.",
    choice="Without it the authorities of the system are trusted.",
)
def test_every_authority_of_the_file_is_trusted(world: World, sandbox: MakeSandbox) -> None:
    servers = {"etcd_endpoints": world.secure.endpoints}
    attach(world, sandbox(), secure=True, **servers, **world.files)
    first = Path(world.files["etcd_ca_cert_file"]).with_name("other.pem")
    refuse(world, sandbox(), 104, "etcd_ca_cert_file", **servers, **world.files | {"etcd_ca_cert_file": str(first)})


@field("etcd_authority", "Host and port of one server, if neither of the other two fields is set; 127.0.0.1:2379 without it.")
def test_authority_applies_without_endpoints(world: World, sandbox: MakeSandbox) -> None:
    attach(world, sandbox())
    attach(world, sandbox(), etcd_authority=world.plain.members[0].authority)
    attach(world, sandbox(), etcd_authority="127.0.0.1:1", etcd_endpoints=world.plain.endpoints)
    refuse(world, sandbox(), 104, "127.0.0.1:1", etcd_authority="127.0.0.1:1")
    assert "etcd_authority = '127.0.0.1:1' is deprecated, and ignored" in world.node.log.read_text()


@field("etcd_scheme", "`http` or `https`, for `etcd_authority`; `http` without it.")
def test_scheme_is_that_of_the_authority(world: World, sandbox: MakeSandbox) -> None:
    attach(world, sandbox(), etcd_scheme="http", etcd_authority=world.plain.members[0].authority)
    secure = {"etcd_scheme": "https", "etcd_authority": world.secure.members[0].authority}
    attach(world, sandbox(), secure=True, **secure, **world.files)
    refuse(world, sandbox(), 7, "etcd_scheme", "is neither http nor https", etcd_scheme="ftp")
