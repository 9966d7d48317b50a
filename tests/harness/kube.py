"""A real API server with its etcd, on its own loopback ports. It starts once per test run.

`make kube-programs` builds the programs once and keeps them outside the checkout.
"""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.etcd import RARE_COLLECTIONS, free_ports

Json = dict[str, Any]

ADMIN, ADMIN_TOKEN = "admin", "token-of-admin"
NODES = "nodes"  # the user of the nodes of tests
NODE_ADDRESS = "192.0.2.1"  # of the uplink of every node: the pods of a node reach a forwarded port there
CACHE = Path(os.environ.get("SVC_TESTCACHE", "/var/cache/svc-tests")) / "kube"
_RARE_APIS = (
    "autoscaling/v1", "autoscaling/v2beta1", "autoscaling/v2beta2", "batch/v1", "batch/v1beta1",
    "certificates.k8s.io/v1", "certificates.k8s.io/v1beta1", "discovery.k8s.io/v1beta1", "extensions/v1beta1",
    "networking.k8s.io/v1beta1",
)  # fmt: skip
_UNUSED_APIS = (*_RARE_APIS, "policy/v1beta1")
"""Without them the server starts faster, and takes a fifth of the processor time while no test uses it."""
_OTHER_VERSIONS = (  # of groups that are served in v1 as well, or are switched off
    "admissionregistration.k8s.io/v1beta1", "apiextensions.k8s.io/v1beta1", "apiregistration.k8s.io/v1beta1",
    "authentication.k8s.io/v1beta1", "authorization.k8s.io/v1beta1", "coordination.k8s.io/v1beta1", "events.k8s.io/v1beta1",
    "flowcontrol.apiserver.k8s.io/v1beta1", "node.k8s.io/v1beta1", "rbac.authorization.k8s.io/v1beta1",
    "scheduling.k8s.io/v1beta1", "storage.k8s.io/v1beta1",
)  # fmt: skip
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_LISTS = re.compile(r'^apiserver_request_total\{(?=.*verb="LIST").*resource="([a-z]+)".*\} (\d+)', re.MULTILINE)


class Refused(Exception):
    """The server refused a request of the harness."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


@dataclass
class Kube:
    """A running API server. `tokens` are known users. The administrator's user has all rights, that of nodes those which
    `orch.install` has given, and the others none.

    With `has_workloads` it also serves the API groups that tests seldom need, such as that of DaemonSets; with `is_small` as
    well, only those that workloads need, because upgrades read the kinds of all groups again and again. With `audits` it logs
    the requests of service accounts and of nodes. `provoked` are those of them that tests let the server deny on purpose.
    """

    folder: Path
    port: int
    etcd_port: int
    has_workloads: bool = False
    audits: bool = False
    is_small: bool = False
    provoked: set[str] = field(default_factory=set)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connection: http.client.HTTPSConnection | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """Return the self-signed certificate of the authority that signed the server's."""
        return self.folder / "certs" / "apiserver.crt"

    def kubeconfig(self, path: Path, token: str = ADMIN_TOKEN, **user: str) -> Path:
        """Write a kubeconfig that trusts the server. `user` replaces the token."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "u", "user": user or {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(document))
        return path

    def connected_again(self) -> "Kube":
        """Return the same server with a connection of its own: a forked process must not use that of its parent."""
        return Kube(self.folder, self.port, self.etcd_port, self.has_workloads)

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Json:
        """Send a request of the administrator over a persistent connection. Raise Refused unless it succeeds."""
        headers = self.authorization | {"Content-Type": content_type}
        with self._lock:
            try:
                status, text = self._ask(method, path, body, headers)
            except (OSError, http.client.HTTPException):  # the server was restarted
                status, text = self._ask(method, path, body, headers)
        if status >= 300:
            raise Refused(status, text)
        found: Json = json.loads(text)
        return found

    @contextmanager
    def watching(self, path: str) -> Iterator[Iterator[Json]]:
        """Yield the events of a list over a separate connection: first the existing objects, then every change."""
        with self.connected() as connection:
            connection.request("GET", f"{path}?watch=1", headers=self.authorization)
            yield map(json.loads, connection.getresponse())

    @contextmanager
    def connected(self) -> Iterator[http.client.HTTPSConnection]:
        """Open a separate connection for the block."""
        connection = self._connected()
        try:
            yield connection
        finally:
            connection.close()

    @property
    def authorization(self) -> dict[str, str]:
        """The header of requests of the administrator."""
        return {"Authorization": f"Bearer {ADMIN_TOKEN}"}

    def text(self, path: str) -> str:
        """Return a reply to the administrator that is not JSON."""
        with self._lock:
            return self._ask("GET", path, None, self.authorization)[1]

    def lists(self) -> Counter[str]:
        """Return how many lists the server was asked for, by resource. A list in pages counts once for each page.

        Services are left out: the server itself lists them every 3 minutes, to repair the addresses that it gives to them.
        """
        found = Counter[str]()
        for resource, number in _LISTS.findall(self.text("/metrics")):
            if resource != "services":
                found[resource] += int(number)
        return found

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, str]:
        if self._connection is None:
            self._connection = self._connected()
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = self._connection.getresponse()
            return reply.status, reply.read().decode()
        except BaseException:
            self._hang_up()
            raise

    def _connected(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def apply(self, documents: Sequence[Json]) -> None:
        """Apply CRDs, roles and other objects on the server. Wait until new CRDs are served."""
        for document in documents:
            root = f"/apis/{document['apiVersion']}/{document['kind'].lower()}s"  # the plural of every applied kind is regular
            path = f"{root}/{document['metadata']['name']}?fieldManager=tests&force=true"
            self.call("PATCH", path, document, "application/apply-patch+yaml")
        for document in documents:
            if document["kind"] == "CustomResourceDefinition":
                spec = document["spec"]
                self._await_served(f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}?limit=1")

    def forget(self, *prefixes: str) -> None:
        """Delete the objects below these prefixes of the server's keys from its etcd, in one request: tests do it very often.

        Watches report the deletions. Finalizers and grace periods do not count.
        """
        self._change(
            {"requestDeleteRange": {"key": _base64(f"/registry/{prefix}"), "range_end": _base64(f"/registry/{prefix[:-1]}0")}}
            for prefix in prefixes  # "0" follows "/"
        )

    def uproot(self, key: str) -> None:
        """Delete the object at a key from the server's etcd."""
        self._change([{"requestDeleteRange": {"key": _base64(f"/registry/{key}")}}])

    def _change(self, operations: Iterable[Json]) -> None:
        """Apply operations on the server's etcd in one transaction."""
        connection = http.client.HTTPConnection("127.0.0.1", self.etcd_port, timeout=30)
        try:
            connection.request("POST", "/v3/kv/txn", json.dumps({"success": list(operations)}))
            reply = connection.getresponse()
            if reply.status != 200:
                raise Refused(reply.status, reply.read().decode())
        finally:
            connection.close()

    def await_right(
        self, user: str, group: str, resource: str, verb: str, *, allowed: bool, namespace: str = "default"
    ) -> None:
        """Wait until the server applies a changed role. Without a namespace, the right must be for all."""
        name, _, part = resource.partition("/")
        attributes = {"group": group, "resource": name, "subresource": part, "verb": verb, "namespace": namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self._await(lambda: bool(self.call("POST", path, body)["status"]["allowed"]) == allowed)

    def await_gone(self, path: str) -> None:
        """Wait until a collection is no longer served."""

        def is_not_served() -> bool:
            try:
                self.call("GET", path)
            except Refused as refusal:
                return refusal.status == 404
            return False

        self._await(is_not_served)

    def start_server(self) -> None:
        """Start the API server on the same port and data as before, and wait until it is ready."""
        certs = self.folder / "certs"
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=192.0.2.1",  # without this address it requires a default route; no client uses the address
            f"--cert-dir={certs}",
            "--service-account-issuer=https://tests",
            f"--service-account-key-file={self.folder}/sa.key",
            f"--service-account-signing-key-file={self.folder}/sa.key",
            f"--token-auth-file={self.folder}/tokens.csv",
            f"--client-ca-file={self.folder}/clients.crt",
            "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--feature-gates=IPv6DualStack=true",
            *([f"--runtime-config={','.join(f'{each}=false' for each in without)}"] if (without := self._without()) else []),
            *([f"--audit-policy-file={self._audit_policy()}", f"--audit-log-path={self.audit_log}"] if self.audits else []),
            "--enable-priority-and-fairness=false",
            "--endpoint-reconciler-type=none",
            "--etcd-count-metric-poll-period=0",
            "--etcd-db-metric-poll-interval=0",
        ]
        self._run("kube-apiserver", [str(CACHE / "bin" / "kube-apiserver"), *arguments])
        self._await(lambda: self.call("GET", "/api/v1/namespaces/default"))
        self._await(lambda: self.text("/readyz") == "ok")  # custom resources are served somewhat later

    def _without(self) -> Sequence[str]:
        """Return the API versions that the server does not serve."""
        if not self.has_workloads:
            return _UNUSED_APIS
        return (*_RARE_APIS, *_OTHER_VERSIONS) if self.is_small else ()

    @property
    def audit_log(self) -> Path:
        """The file with a line for each request of a service account or a node that has ended."""
        return self.folder / "audit.log"

    def _audit_policy(self) -> Path:
        level = "Metadata"
        rules = [
            {"level": level, "userGroups": ["system:serviceaccounts"]},
            {"level": level, "users": [NODES]},
            {"level": "None"},
        ]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        path = self.folder / "audit-policy.json"
        path.write_text(json.dumps(policy))
        return path

    def stop_server(self) -> None:
        self._stop("kube-apiserver", signal.SIGKILL)

    def save(self, snapshot: Path) -> None:
        """Save a snapshot of the server's etcd."""
        self._etcdctl("snapshot", "save", str(snapshot))

    def restore(self, snapshot: Path) -> None:
        """Restart the server and its etcd with the data of a snapshot, as an administrator restores a cluster."""
        self.stop_server()
        self._stop("etcd", signal.SIGKILL)
        shutil.rmtree(self.folder / "etcd")
        self._etcdctl("snapshot", "restore", str(snapshot), f"--data-dir={self.folder / 'etcd'}")
        self._start_etcd()
        self.start_server()

    def _etcdctl(self, *arguments: str) -> None:
        command = ["etcdctl", f"--endpoints=http://127.0.0.1:{self.etcd_port}", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=_START_SECONDS)

    @contextmanager
    def controllers(self, *names: str) -> Iterator[None]:
        """Run a controller manager with these controllers inside the `with` block."""
        arguments = [f"--controllers={','.join(names)}", f"--root-ca-file={self.authority}"]
        with self._program("kube-controller-manager", *arguments):
            yield

    @contextmanager
    def scheduler(self) -> Iterator[None]:
        """Run a scheduler inside the `with` block."""
        with self._program("kube-scheduler"):
            yield

    @contextmanager
    def _program(self, name: str, *arguments: str) -> Iterator[None]:
        config = self.kubeconfig(self.folder / f"{name}.kubeconfig")
        common = [f"--kubeconfig={config}", "--leader-elect=false", "--port=0", "--secure-port=0"]
        self._run(name, [str(CACHE / "bin" / name), *common, *arguments])
        try:
            yield
        finally:
            self._stop(name, signal.SIGKILL)

    def start(self) -> None:
        subprocess.run(["openssl", "genrsa", "-out", self.folder / "sa.key", "2048"], check=True, capture_output=True)
        self._make_certificates()
        others = [f"token-of-{name},{name},{number}" for number, name in enumerate(("plugin", "nobody", "reader", NODES), 2)]
        users = [f'{ADMIN_TOKEN},{ADMIN},1,"system:masters"', *others]
        (self.folder / "tokens.csv").write_text("\n".join(users) + "\n")
        self._start_etcd()
        self.start_server()

    def _start_etcd(self) -> None:
        (peer,) = free_ports(1)
        addresses = [f"--listen-client-urls=http://127.0.0.1:{self.etcd_port}", f"--listen-peer-urls=http://127.0.0.1:{peer}"]
        advertised = [f"--advertise-client-urls=http://127.0.0.1:{self.etcd_port}", f"--data-dir={self.folder}/etcd"]
        self._run("etcd", ["etcd", *addresses, *advertised, "--unsafe-no-fsync"])

    def _make_certificates(self) -> None:
        """Make the server's certificate, an authority of clients, and an administrator's certificate client.crt and client.key.

        The server would make a certificate with an RSA key: then its signatures take 6 % of its processor time.
        """

        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

        self.authority.parent.mkdir()
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        names = f"subjectAltName=IP:127.0.0.1,IP:{NODE_ADDRESS},DNS:localhost,DNS:kubernetes.default.svc"
        server = ("-keyout", self.authority.with_suffix(".key"), "-out", self.authority)
        openssl("req", "-x509", *key, *map(str, server), "-subj", "/CN=server", "-addext", names)
        openssl("req", "-x509", *key, "-keyout", "clients.key", "-out", "clients.crt", "-subj", "/CN=clients")
        openssl("req", *key, "-keyout", "client.key", "-out", "client.csr", "-subj", "/O=system:masters/CN=certified")
        signed = ("-CA", "clients.crt", "-CAkey", "clients.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", "client.csr", *signed, "-out", "client.crt")

    def stop(self) -> None:
        self._hang_up()
        for name in list(self.processes):
            self._stop(name, signal.SIGKILL)

    def _await_served(self, path: str) -> None:
        self._await(lambda: "items" in self.call("GET", path))

    def _await(self, condition: Any) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(Refused, OSError, ValueError, http.client.HTTPException):
                if condition():
                    return
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"{ended} ended: {self._log(ended[0])}"
            assert time.monotonic() < deadline, f"the API server is not ready: {self._log('kube-apiserver')}"
            time.sleep(0.05)

    def _run(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = os.environ | RARE_COLLECTIONS
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def _stop(self, name: str, number: signal.Signals) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(_STOP_SECONDS)

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-2000:]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def why_not_running() -> str:
    """Return which programs of an API server are missing; empty if they are there."""
    if shutil.which("etcd") is None:
        return "needs etcd (Debian: etcd-server)"
    if not (CACHE / "bin" / "kube-apiserver").exists():
        return "needs an API server: `make kube-programs` builds it"
    return ""


@contextmanager
def running(folder: Path, *, has_workloads: bool = False, audits: bool = False, is_small: bool = False) -> Iterator[Kube]:
    """Run an empty API server. Skip the test if its programs are missing. At the end remove the data of its etcd."""
    if reason := why_not_running():
        pytest.skip(reason)
    port, etcd_port = free_ports(2)
    kube = Kube(folder, port, etcd_port, has_workloads, audits, is_small)
    try:
        kube.start()
        yield kube
    finally:
        kube.stop()
        shutil.rmtree(folder / "etcd", ignore_errors=True)
