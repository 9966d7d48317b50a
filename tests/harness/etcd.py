"""Real etcd servers on loopback, with one or several members, with or without TLS. Tests kill, restart and read them."""

import base64
import fcntl
import http.client
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

RARE_COLLECTIONS = {"GOGC": "800"}  # environment of programs in Go, which otherwise collect small heaps very often
TIMEOUT_SECONDS = 30.0  # far longer than any successful wait
_POLL = 0.02
_HOST = "127.0.0.1"
_RANGES, _RANGE = 40, 500  # of ports


@dataclass(frozen=True)
class ServerTls:
    """The certificate of a server, and the authorities of the clients that it accepts."""

    certificate: Path
    key: Path
    clients: Path | None = None  # certificates of authorities; None accepts every client

    def flags(self) -> list[str]:
        flags = [f"--cert-file={self.certificate}", f"--key-file={self.key}"]
        return flags + ([f"--trusted-ca-file={self.clients}", "--client-cert-auth"] if self.clients else [])


@dataclass
class Member:
    """One server. `folder` outlives its process. A `durable` member syncs each commit to disk, as in production."""

    name: str
    folder: Path
    tls: ServerTls | None = None
    flags: Sequence[str] = ()
    host: str = _HOST  # for clients
    durable: bool = False
    ports: list[int] = field(default_factory=lambda: free_ports(3))  # clients, peers, health
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.ports[0]}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://{_HOST}:{self.ports[1]}"

    def start(self, cluster: str = "") -> None:
        """Start or restart the member, without waiting for it."""
        command = [
            "etcd", f"--name={self.name}", f"--data-dir={self.folder / self.name}",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls=http://{_HOST}:{self.ports[1]}",
            f"--initial-advertise-peer-urls=http://{_HOST}:{self.ports[1]}",
            f"--initial-cluster={cluster or self.peer}", f"--listen-metrics-urls=http://{_HOST}:{self.ports[2]}",
            *(() if self.durable else ("--unsafe-no-fsync",)), *(self.tls.flags() if self.tls else ()), *self.flags,
        ]  # fmt: skip
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | RARE_COLLECTIONS)

    def wait(self) -> None:
        """Wait until the member is healthy."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_healthy():
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / f"{self.name}.log").read_text()
            assert time.monotonic() < until, "etcd did not become healthy in time"
            time.sleep(_POLL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        """End the member, and remove its data. Its log stays."""
        self.kill()
        shutil.rmtree(self.folder / self.name, ignore_errors=True)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self.ports[2], timeout=2)
        try:
            connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read()).get("health") == "true")
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()


@dataclass(frozen=True)
class Cluster:
    """A cluster. If its members have no TLS, its methods can read and change it.

    Most of them send JSON to the gateway of a member: a start of etcdctl takes longer than the request.
    """

    members: list[Member]

    @property
    def endpoints(self) -> str:
        return ",".join(member.url for member in self.members)

    def restart(self, member: Member) -> None:
        member.start(self._initial())
        member.wait()

    def save(self, snapshot: Path) -> None:
        self.ctl("snapshot", "save", str(snapshot))

    def restore(self, snapshot: Path, *flags: str) -> None:
        """Restart the only member with the data of a snapshot. `flags` are those of etcdctl."""
        (member,) = self.members
        member.kill()
        shutil.rmtree(member.folder / member.name)
        self.ctl(
            "snapshot", "restore", str(snapshot), f"--data-dir={member.folder / member.name}", f"--name={member.name}",
            f"--initial-cluster={member.peer}", f"--initial-advertise-peer-urls={member.peer.partition('=')[2]}", *flags,
        )  # fmt: skip
        self.start()

    def leader(self) -> Member:
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            for member in self.members:
                with suppress(subprocess.CalledProcessError):
                    (status,) = json.loads(self.ctl("endpoint", "status", "-w", "json", endpoint=member.url))
                    if status["Status"]["leader"] == status["Status"]["header"]["member_id"]:
                        return member
        raise AssertionError("no member is the leader")

    def ctl(self, *arguments: str, endpoint: str = "") -> str:
        """Return the output of etcdctl."""
        command = ["etcdctl", f"--endpoints={endpoint or self.endpoints}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS).stdout

    def put(self, key: str, value: str) -> int:
        """Write the key, and return the revision of the change."""
        return int(self._ask("kv/put", key=_encoded(key), value=_encoded(value))["header"]["revision"])

    def get(self, key: str) -> str:
        """Return the text of the key."""
        (found,) = self._ask("kv/range", key=_encoded(key))["kvs"]
        return _decoded(found["value"])

    def erase(self, prefix: str) -> int:
        """Delete the keys below the prefix, and return the revision of the change."""
        return int(self._ask("kv/deleterange", **_below(prefix))["header"]["revision"])

    def has_history(self, revision: int) -> bool:
        """Return whether keys can be read as they were at the revision."""
        try:
            self._ask("kv/range", key=_encoded("/"), revision=revision)
        except RuntimeError as refusal:
            if "compacted" not in str(refusal):
                raise
            return False
        return True

    def compact(self, revision: int) -> None:
        self._ask("kv/compaction", revision=revision, physical=True)

    def stored(self, prefix: str) -> list[tuple[str, Any]]:
        """Return keys and documents, in key order."""
        return [(key, json.loads(text)) for key, text in self.texts(prefix).items()]

    def texts(self, prefix: str) -> dict[str, str]:
        """Return keys and texts, in key order."""
        found = self._ask("kv/range", **_below(prefix)).get("kvs", ())
        return {_decoded(each["key"]): _decoded(each["value"]) for each in found}

    def _ask(self, method: str, **body: Any) -> Any:
        """Return the answer of the first member that runs. Raise RuntimeError for a refusal."""
        member = next(member for member in self.members if member.process is not None)
        connection = http.client.HTTPConnection(member.host, member.ports[0], timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(body))
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{method}: {reply.status} {text.decode()}")
        return json.loads(text)

    def start(self) -> None:
        for member in self.members:
            member.start(self._initial())
        for member in self.members:
            member.wait()

    def _initial(self) -> str:
        return ",".join(member.peer for member in self.members)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _below(prefix: str) -> dict[str, str]:
    """Return the fields of a request for the keys that begin with the prefix."""
    return {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


@contextmanager
def cluster(
    folder: Path,
    members: int = 1,
    *,
    tls: ServerTls | None = None,
    flags: Sequence[str] = (),
    host: str = _HOST,
    durable: bool = False,
) -> Iterator[Cluster]:
    """Run a cluster with its data below `folder`. Only a `durable` one syncs to disk. Skip the test without etcd.

    At the end nothing but the logs is kept: the empty log files of a member alone take 128 MB.
    """
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("needs etcd and etcdctl (Debian: etcd-server, etcd-client)")
    running = Cluster([Member(f"m{number}", folder, tls, flags, host, durable) for number in range(members)])
    try:
        running.start()
        yield running
    finally:
        for member in running.members:
            member.remove()


def free_ports(count: int) -> list[int]:
    """Return ports on loopback without a listener.

    The kernel gives none of them to a connection before a server has bound it, and no other worker of the tests gets it.
    """
    found: list[int] = []
    while len(found) < count:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server((_HOST, port)):
            found.append(port)
    return found


def _ports_of_this_process() -> Iterator[int]:
    """Yield ports below those of outgoing connections (ip_local_port_range), over and over again.

    A lock keeps them for this process as long as it runs, also from test runs of other checkouts.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while not _lock(number := number % _RANGES):
        number += 1
    first = 10_000 + _RANGE * number
    return itertools.cycle(range(first, first + _RANGE))


def _lock(number: int) -> bool:
    """Return whether this process has this range now. The lock ends with the process."""
    path = Path(tempfile.gettempdir()) / f"svc-test-ports-{number}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:  # of another user, such as root, whose range it stays
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


_PORTS = _ports_of_this_process()
