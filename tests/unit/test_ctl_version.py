"""svcctl version, and which commands refuse a cluster of another version."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
import yaml

import svc
from harness.agent_program import Program
from harness.documents import RESERVATION
from harness.node import netconf
from harness.svcctl import Cli, commands
from svc.admin import build_commit
from svc.admin.agent_client import NoAgent, ask_version
from svc.admin.resources import CLUSTER
from svc.admin.version_check import comparable
from svc.cni.introspection_frame import REPLY_LIMIT, pack_document
from svc.cni.locks import AGENT, StateLock
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.model.resource import Resource

TIMEOUT_SECONDS: Final = 30.0
DOCUMENT: Final = json.dumps(
    {"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": "p"}, "spec": {"cidr": "10.65.0.0/24"}}
)
CHECKED: Final[dict[str, tuple[str, ...]]] = {  # each command that reads or writes the datastore, with its arguments
    "apply": ("-f", "-"),
    "create": ("-f", "-"),
    "replace": ("-f", "-"),
    "delete": ("pool", "p"),
    "get": ("pools",),
    "label": ("pool", "p", "a=b"),
    "clusterinfo init": (),
    "clusterinfo lock": (),
    "clusterinfo show": (),
    "clusterinfo unlock": (),
    "datastore export": ("export.json",),
    "explain": ("default/web-1", "--node", "n"),
    "ipam check": (),
    "ipam configure": ("--max-blocks-per-host", "3"),
    "ipam map": ("p",),
    "ipam release": ("--ip", "10.65.0.1"),
    "ipam show": (),
    "ipam split": ("2", "--pool", "p"),
    "node apply": ("n",),
    "node delete": ("n",),
    "node get": (),
    "pool apply": ("-f", "-"),
    "pool delete": ("p",),
    "pool get": (),
    "reservation apply": ("-f", "reservation.json"),
    "reservation delete": ("r",),
    "reservation get": (),
    "store backup": ("backup.db",),
}
IN_A_CLUSTER: Final = {"installation apply", "installation diff", "test"}  # checked too, tested apart
EXEMPT: Final = {"datastore import", "version", "status", "diag", "install", "uninstall"}
WITHOUT_DATASTORE: Final = {
    *("attachments", "convert", "crd apply", "crd binding", "crd print", "crd role", "installation render", "man", "manifests"),
    *(f"upgrade {name}" for name in ("apply", "plan", "status", "undo", "verify")),  # they compare versions themselves
    *("installation status", "pending drop", "pending get", "reconcile", "store restore"),
}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def set_version(folder: Path, version: str) -> None:
    with closing(EmbeddedStore(folder / "state" / EMBEDDED_FILE)) as store:
        fields = {"svcVersion": version, "clusterType": "k8s,bgp", "datastoreReady": True, "clusterGUID": "a" * 32}
        store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name}, fields))


# the check


def test_every_command_is_checked_exempt_or_without_a_datastore() -> None:
    """A new command must be put into one of the tables of this file."""
    groups = (set(CHECKED), IN_A_CLUSTER, EXEMPT, WITHOUT_DATASTORE)
    assert sorted(commands()) == sorted(name for group in groups for name in group)


@pytest.mark.parametrize("name", CHECKED)
def test_commands_refuse_a_datastore_of_another_version(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing is written. With the option, before or after the command, they go on."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "netconf.json"
    file.write_text(json.dumps(netconf()))
    (tmp_path / "reservation.json").write_text(json.dumps(RESERVATION))
    set_version(tmp_path, "v99.0.0")
    words = ("--netconf", str(file), *name.split(), *CHECKED[name])
    with closing(EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)) as store:
        before = store.position()
        refused = cli.fails(*words, stdin=DOCUMENT)
        assert store.position() == before
    assert f"svcctl is of version {svc.__version__}, and the cluster of v99.0.0" in refused
    assert "--allow-version-mismatch" in refused
    assert "and the cluster of" not in cli(*words, "--allow-version-mismatch", stdin=DOCUMENT).output
    assert "and the cluster of" not in cli("--allow-version-mismatch", *words, stdin=DOCUMENT).output


def test_connection_test_refuses_a_datastore_of_another_version(tmp_path: Path) -> None:
    """It ends its process, so that it has one of its own here."""
    Cli(tmp_path)
    set_version(tmp_path, "v99.0.0")
    (tmp_path / "netconf.json").write_text(json.dumps(netconf()))
    done = svcctl(tmp_path, "test", "--netconf", str(tmp_path / "netconf.json"))
    assert (done.returncode, "and the cluster of v99.0.0" in done.stdout) == (1, True)
    done = svcctl(tmp_path, "test", "--netconf", str(tmp_path / "netconf.json"), "--allow-version-mismatch")
    assert (done.returncode, done.stdout.endswith("datastore embedded: ok, ready\n")) == (0, True)


def test_other_commands_work_beside_a_datastore_of_another_version(cli: Cli, tmp_path: Path) -> None:
    set_version(tmp_path, "v99.0.0")
    assert json.loads(cli("status", "-o", "json").stdout)["datastore"]["pools"] == []
    assert "and the cluster of" not in cli("diag").output
    assert "VERSION" in cli.prints("man", "version").upper()
    assert "cluster version  v99.0.0\n" in cli("version").stdout


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.2.3", "1.2.3"),
        ("1.2.3", "1.2.3"),
        ("v1.2.3-dirty", "1.2.3"),
        ("v1.2.3-4-gabc-dirty", "1.2.3"),
        ("1.0.0rc1", "1.0.0rc1"),
        ("vv1", "v1"),
        ("-dirty", ""),
        ("", ""),
    ],
)
def test_prefix_and_suffix_of_a_version_do_not_count(version: str, expected: str) -> None:
    assert comparable(version) == expected


def test_cluster_information_that_cannot_be_decoded_passes(cli: Cli, tmp_path: Path) -> None:
    """`svcctl ipam check` reports it."""
    set_version(tmp_path, "v99.0.0")
    with closing(EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)) as store:
        store._writer.execute("UPDATE entries SET value = '{' WHERE path LIKE '%clusterinformation%'")
        store._writer.commit()
    cli.prints("get", "pools")


# svcctl version


def svcctl(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(folder, *words), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)


def command(folder: Path, *words: str) -> list[str]:
    directories = ("--state-dir", str(folder / "state"), "--run-dir", str(folder / "run"))
    return [sys.executable, "-c", "from svc.ctl.main import main; main()", *directories, *words]


def test_client_is_shown_without_datastore_and_agent(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.admin.versions.build_commit", lambda: "5a763994-dirty")
    (tmp_path / "broken.json").write_text("{")
    expected = f"client version   {svc.__version__}\nclient commit    5a763994-dirty\n"
    assert cli.prints("--netconf", str(tmp_path / "broken.json"), "version", "--client") == expected
    client = {"version": svc.__version__, "commit": "5a763994-dirty"}
    assert json.loads(cli.prints("version", "--client", "-o", "json")) == {"client": client}
    assert yaml.safe_load(cli.prints("version", "--client", "-o", "yaml")) == {"client": client}


@pytest.mark.parametrize("text", ["0123abc\n", None], ids=["known", "sdist"])
def test_commit_is_read_from_the_metadata(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    """If the metadata has none, the line says so."""
    folder = tmp_path / "site" / "svc_cni-1.2.3.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: svc-cni\nVersion: 1.2.3\n")
    if text is not None:
        (folder / build_commit.FILE).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert build_commit.build_commit() == (text or "").strip()
    expected = "0123abc" if text else "unknown: svcctl was built outside of its repository"
    assert f"client commit    {expected}\n" in cli.prints("version", "--client")
    assert json.loads(cli.prints("version", "--client", "-o", "json"))["client"]["commit"] == (text and "0123abc")


def test_machine_without_datastore_and_agent(tmp_path: Path) -> None:
    """That is not an error, as on the machine of an administrator."""
    cli = Cli(tmp_path, fresh=False)
    lines = cli.prints("version").splitlines()
    assert lines[2:] == [
        "cluster version  none: no datastore is known, name one with --netconf",
        "agent version    none: this machine has no state directory of an agent",
    ]
    found = json.loads(cli.prints("version", "-o", "json"))
    assert (found["cluster"], found["agent"]) == (None, None)


def test_named_store_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    result = Cli(tmp_path, fresh=False)("--embedded", "version")
    assert result.exit_code == 1
    assert "cluster version  unknown: the embedded store " in result.stdout
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("stored", "shown"), [("v1.2.3", "v1.2.3"), ("", "unknown")])
def test_cluster_and_a_missing_agent(cli: Cli, tmp_path: Path, stored: str, shown: str) -> None:
    """The line of the agent says what is wrong, and the remedy is on standard error."""
    set_version(tmp_path, stored)
    result = cli("version")
    assert result.exit_code == 1
    *_, version, types, agent = result.stdout.splitlines()
    assert (version, types) == (f"cluster version  {shown}", "cluster types    k8s,bgp")
    assert agent.startswith("agent version    unknown: the agent does not run: socket ")
    assert "start it: `systemctl start svc-agent`" in result.stderr
    found = json.loads(cli("version", "-o", "json").stdout)
    assert found["cluster"] == {
        "version": stored or None, "types": ["k8s", "bgp"], "svcVersion": stored or None,
        "datastore": f"embedded store {tmp_path / 'state' / EMBEDDED_FILE}", "error": None,
    }  # fmt: skip
    assert found["agent"]["version"] is None
    assert found["agent"]["error"]["message"].startswith("the agent does not run")


def test_datastore_that_does_not_answer(tmp_path: Path) -> None:
    """The command ends all the same, and shows what answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        file = tmp_path / "netconf.json"
        file.write_text(json.dumps(netconf(datastore_type="etcdv3", etcd_endpoints=f"http://127.0.0.1:{port}")))
        began = time.monotonic()
        done = svcctl(tmp_path, "version", "--netconf", str(file), "-o", "json")
        seconds = time.monotonic() - began
    found = json.loads(done.stdout)
    assert (done.returncode, found["client"]["version"], found["agent"]) == (1, svc.__version__, None)
    assert (found["cluster"]["version"], found["cluster"]["types"]) == (None, [])
    assert found["cluster"]["error"]["message"]
    assert done.stderr.startswith("Error: ")
    assert seconds < 15


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--poll", "soon"), "'soon' is not a duration"),
        (("--poll", "0s"), "'0s' is zero"),
        (("--poll", "-1s"), "'-1s' is not a duration"),
        (("--client", "--poll", "1s"), "--client and --poll exclude each other"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(cli: Cli, words: tuple[str, ...], problem: str) -> None:
    assert problem in cli.fails("version", *words, code=2)


def test_polling_prints_changes_until_an_interrupt(tmp_path: Path) -> None:
    """Errors are printed with them, on standard error."""
    Cli(tmp_path)
    set_version(tmp_path, "v1.0.0")
    words = command(tmp_path, "version", "--poll", "50ms", "-o", "json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as polling:
        assert polling.stdout is not None
        assert polling.stderr is not None
        try:
            errors = []
            for version in ("v1.0.0", "v1.0.1", "v1.0.2"):
                set_version(tmp_path, version)
                assert json.loads(polling.stdout.readline())["cluster"]["version"] == version
                errors.append(polling.stderr.readline())
                time.sleep(0.3)  # several rounds without a change
        finally:
            os.kill(polling.pid, signal.SIGINT)
        assert polling.wait(TIMEOUT_SECONDS) == 130
        assert polling.stdout.read() == ""
        assert polling.stderr.read() == ""
    assert len(set(errors)) == 1  # each version was printed with the same error


# the agent's version


MakeAgent = Callable[[Any], Path]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[MakeAgent]:
    """Return a function that starts an agent with a reply and returns its socket."""
    started = []

    def make(reply: Any) -> Path:
        path = tmp_path / "run" / "agent.sock"
        document = pack_document(orjson.dumps(reply), REPLY_LIMIT)
        started.append(Program(path, lambda connection: connection.sendall(document)))
        return path

    yield make
    for each in started:
        each.close()


def test_agent_of_another_release_tells_its_version(cli: Cli, tmp_path: Path, agent: MakeAgent) -> None:
    """Its refusal of the request has it."""
    set_version(tmp_path, "v1.2.3")
    path = agent({"version": "9.8.7", "error": {"field": "kind", "value": None, "problem": "is missing", "remedy": "r"}})
    assert ask_version(tmp_path / "state", path) == "9.8.7"
    assert cli.prints("version").splitlines()[-1] == "agent version    9.8.7"
    assert json.loads(cli.prints("version", "-o", "json"))["agent"] == {"version": "9.8.7", "error": None}


@pytest.mark.parametrize("reply", [{"data": {}}, {"version": 5, "data": {}}], ids=str)
def test_reply_without_a_version_is_not_that_of_an_agent(tmp_path: Path, agent: MakeAgent, reply: Any) -> None:
    with pytest.raises(NoAgent, match="version is missing or is not text"):
        ask_version(tmp_path / "state", agent(reply))


def test_agent_is_found_by_its_lock(tmp_path: Path, agent: MakeAgent) -> None:
    """The run directory that svcctl knows may be another one."""
    path = agent({"version": "9.8.7", "data": {}})
    with closing(StateLock(tmp_path / "state", AGENT, path)) as lock:
        lock.take_as_agent(TIMEOUT_SECONDS)
        assert ask_version(tmp_path / "state", tmp_path / "other.sock") == "9.8.7"
