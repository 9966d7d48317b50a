"""Ctrl-C ends each command of svcctl at once: without a traceback, with status 130, and with nothing half written.

A command is interrupted while it waits: for an answer of a server or agent that is silent, for its input, or for the reader of
its output.
"""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from harness.documents import RESERVATION, pool, text
from harness.journal_rows import record
from harness.node import netconf
from harness.polling import wait_until
from harness.svcctl import Cli, commands
from svc.admin import node_state
from svc.attach.journal import Journal
from svc.attach.record import DELETING
from svc.cni.install_record import SOCKET_NAME
from svc.ctl.interrupts import INTERRUPTED
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE

pytestmark = pytest.mark.slow

MAIN: Final = "from svc.ctl.main import main; main(prog_name='svcctl')"
SECONDS: Final = 2.0
TIMEOUT_SECONDS: Final = 30.0
DATASTORE: Final[dict[str, tuple[str, ...]]] = {  # commands that wait for a datastore
    "apply": ("-f", "pool.yaml"),
    "create": ("-f", "pool.yaml"),
    "replace": ("-f", "pool.yaml"),
    "delete": ("pool", "p"),
    "get": ("pools,np",),
    "label": ("pool", "p", "a=b"),
    "clusterinfo init": (),
    "clusterinfo lock": (),
    "clusterinfo show": (),
    "clusterinfo unlock": (),
    "datastore export": ("new.json",),
    "datastore import": ("export.json",),
    "explain": ("default/web-1", "--node", "n"),
    "ipam check": ("--report", "report.json"),
    "ipam configure": ("--max-blocks-per-host", "3"),
    "ipam map": ("p", "--svg", "map.svg"),
    "ipam release": ("--ip", "10.65.0.1"),
    "ipam show": (),
    "ipam split": ("2", "--pool", "p"),
    "node apply": ("n",),
    "node delete": ("n",),
    "node get": (),
    "pool apply": ("-f", "pool.yaml"),
    "pool delete": ("p",),
    "pool get": (),
    "reservation apply": ("-f", "reservation.yaml"),
    "reservation delete": ("r",),
    "reservation get": (),
    "test": (),
    "version": (),
}
CLUSTER: Final[dict[str, tuple[str, ...]]] = {  # commands that wait for a Kubernetes API
    "crd apply": (),
    "installation apply": ("-f", "installation.yaml"),
    "installation diff": ("-f", "installation.yaml"),
    "installation status": (),
    "upgrade apply": ("--manifest", "manifest.yaml"),
    "upgrade plan": ("--manifest", "manifest.yaml", "--out", "plan.json"),
    "upgrade status": (),
    "upgrade undo": (),
    "upgrade verify": ("--manifest", "manifest.yaml"),
}
AGENT: Final[dict[str, tuple[str, ...]]] = {  # commands that wait for the agent
    "attachments": (),
    "diag": ("--bundle", "diag.tgz"),
    "reconcile": (),
    "status": (),
}
PRINTING: Final[dict[str, tuple[str, ...]]] = {  # commands that wait for nothing but the reader of their output
    "convert": ("-f", "pool.yaml", "--to", "calico"),
    "crd binding": ("--service-account", "svc"),
    "crd print": (),
    "crd role": (),
    "install": ("--bin-dir", "bin"),
    "installation render": ("-f", "installation.yaml"),
    "man": (),
    "manifests": (),
    "pending drop": ("net", "c1", "eth0", "--reason", "gone"),
    "pending get": (),
    "store backup": ("new.db",),
    "store restore": ("backup.db",),
    "uninstall": ("--bin-dir", "bin"),
}
NEW_FILES: Final = ("new.json", "report.json", "map.svg", "plan.json", "diag.tgz")  # that no command gets to write
OBJECTS: Final[dict[str, Any]] = {
    "pool.yaml": pool("p"),
    "reservation.yaml": RESERVATION,
    "installation.yaml": {
        "apiVersion": "operator.svc.internal/v1",
        "kind": "Installation",
        "metadata": {"name": "default"},
        "spec": {},
    },
    "manifest.yaml": {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": "kube-system"},
        "data": {"a": "b"},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with the files that commands read, and the state of a node with a pending release."""
    for name, document in OBJECTS.items():
        (tmp_path / name).write_text(text(document))
    cli = Cli(tmp_path)
    cli.changes("clusterinfo", "init")
    cli.changes("clusterinfo", "lock")
    cli.prints("datastore", "export", str(tmp_path / "export.json"))
    cli.prints("store", "backup", str(tmp_path / "backup.db"))
    cli.changes("clusterinfo", "unlock")
    with closing(Journal(tmp_path / "state/journal.db")) as journal:
        journal.begin(record(state=DELETING))
    (tmp_path / "run").mkdir()
    return tmp_path


def start(folder: Path, words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    directories = ["--state-dir", str(folder / "state"), "--run-dir", str(folder / "run")]
    command = [sys.executable, "-c", MAIN, *directories, *words]
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as users have it
    return subprocess.Popen(command, cwd=folder, start_new_session=True, env=environment, **given)


def interrupt(process: "subprocess.Popen[bytes]") -> str:
    """Send Ctrl-C. Require that the command ends in time, with its status and without a traceback; return its errors."""
    with process:
        try:
            assert process.poll() is None, "it has ended before it waited"
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=TIMEOUT_SECONDS)
            seconds = time.monotonic() - began
        finally:
            process.kill()
    said = (told or b"").decode()
    assert (process.returncode, "Traceback" in said, "Exception" in said) == (INTERRUPTED, False, False), said
    assert seconds < SECONDS
    return said


def require_whole(folder: Path) -> None:
    """Require that no file is a draft, or half of one."""
    assert [str(path) for path in folder.rglob(".*")] == []
    assert [name for name in NEW_FILES if (folder / name).exists()] == []


@contextmanager
def silent_server() -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield the port of a server that never answers, and what waits until it has got a request."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.settimeout(TIMEOUT_SECONDS)

        def await_request() -> None:
            connection, _ = server.accept()
            connections.append(connection)
            connection.settimeout(TIMEOUT_SECONDS)
            assert connection.recv(1)

        yield server.getsockname()[1], await_request
        for each in connections:
            each.close()


def kubeconfig(folder: Path, port: int) -> Path:
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}))
    return file


def network(folder: Path, store: str, port: int) -> Path:
    """Write a network configuration with a datastore at this port."""
    if store == "orch":
        options: dict[str, Any] = {"orch": {"kubeconfig": str(kubeconfig(folder, port))}}
    else:
        options = {"etcd_endpoints": f"http://127.0.0.1:{port}"}
    file = folder / "netconf.json"
    file.write_text(json.dumps(netconf(datastore_type=store, **options)))
    return file


def test_every_command_is_in_a_table() -> None:
    """A new command must be put into the table of this file that says what it waits for."""
    assert sorted(commands()) == sorted([*DATASTORE, *CLUSTER, *AGENT, *PRINTING])


@pytest.mark.parametrize("store", ["etcdv3", "orch"])
@pytest.mark.parametrize("name", DATASTORE)
def test_command_that_waits_for_a_datastore_ends(folder: Path, name: str, store: str) -> None:
    with silent_server() as (port, await_request):
        process = start(folder, ["--netconf", str(network(folder, store, port)), *name.split(), *DATASTORE[name]])
        await_request()
        interrupt(process)
    require_whole(folder)


@pytest.mark.parametrize("name", CLUSTER)
def test_command_that_waits_for_a_cluster_ends(folder: Path, name: str) -> None:
    with silent_server() as (port, await_request):
        process = start(folder, [*name.split(), "--kubeconfig", str(kubeconfig(folder, port)), *CLUSTER[name]])
        await_request()
        assert "interrupted" in interrupt(process)
    require_whole(folder)


@pytest.mark.parametrize("words", [*((name, *AGENT[name]) for name in AGENT), ("explain", "--container", "c1")], ids=" ".join)
def test_command_that_waits_for_the_agent_ends(folder: Path, words: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "run" / SOCKET_NAME))
        server.listen(8)
        server.settimeout(TIMEOUT_SECONDS)
        process = start(folder, list(words))
        connection, _ = server.accept()
        with connection:
            connection.settimeout(TIMEOUT_SECONDS)
            assert connection.recv(1)
            interrupt(process)
    require_whole(folder)


@contextmanager
def full_pipe() -> Iterator[int]:
    """Yield the writing end of a pipe that takes nothing more."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        for size in (1 << 16, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(writing, bytes(size))
        os.set_blocking(writing, True)
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def await_call(process: "subprocess.Popen[bytes]", function: str) -> None:
    """Wait until the process waits in this function of the kernel."""
    wait_until(lambda: process.poll() is not None or function in Path(f"/proc/{process.pid}/wchan").read_text())


@pytest.mark.root
@pytest.mark.parametrize("name", PRINTING)
def test_command_whose_output_nobody_reads_ends(folder: Path, name: str) -> None:
    """What it had to do is done then."""
    if name == "uninstall":
        Cli(folder, fresh=False).prints("install", "--bin-dir", str(folder / "bin"))
    with full_pipe() as writing:
        process = start(folder, [*name.split(), *PRINTING[name]], stdout=writing)
        await_call(process, "pipe_write")
        assert "interrupted" in interrupt(process)
    require_whole(folder)
    assert len(node_state.read_attachments(folder / "state", "")) == (name != "pending drop")
    with closing(EmbeddedStore(folder / "state" / EMBEDDED_FILE)) as store:
        assert store.position()
    if name == "store backup":
        assert Cli(folder, fresh=False).prints("store", "restore", str(folder / "new.db"))


@pytest.mark.root
@pytest.mark.parametrize("words", ["convert --to calico -f -", "apply -f -", "installation render -f -"])
def test_command_that_waits_for_its_input_ends(folder: Path, words: str) -> None:
    reading, writing = os.pipe()
    process = start(folder, words.split(), stdin=reading)
    await_call(process, "pipe_read")
    assert "interrupted" in interrupt(process)
    os.close(reading)
    os.close(writing)


def test_interrupt_in_place_of_an_answer_changes_nothing(folder: Path) -> None:
    cli = Cli(folder, fresh=False)
    cli.changes("apply", "-f", str(folder / "pool.yaml"))
    leader, follower = pty.openpty()
    process = start(folder, ["delete", "pools", "--all"], stdin=follower, stdout=follower)
    os.close(follower)
    assert process.stderr is not None
    shown = b""
    while b"Delete ippool/p?" not in shown:
        shown += os.read(process.stderr.fileno(), 4096) or pytest.fail("it has ended")
    await_call(process, "wait_woken")  # it reads the terminal: Python would not notice a signal just before that
    try:
        assert "interrupted" in interrupt(process)
    finally:
        os.close(leader)
    assert cli.prints("get", "pools", "-o", "name") == "ippool/p\n"
