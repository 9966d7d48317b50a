"""svcctl: output and exit status of its commands."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.svcctl import Cli
from svc import __version__

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


MANIFEST = """
apiVersion: svc.internal/v3
kind: IPPool
metadata: {name: pool4}
spec: {cidr: 10.77.0.0/24, natOutgoing: true}
---
apiVersion: svc.internal/v3
kind: IPPool
metadata: {name: pool6}
spec: {cidr: 'fd77::/112', nodeSelector: zone == 'a'}
"""

TABLE = """\
NAME   CIDR          BLOCKS  NAT  IPIP   VXLAN  DISABLED  NODES
pool4  10.77.0.0/24  /26     yes  Never  Never  no        all()
pool6  fd77::/112    /122    no   Never  Never  no        zone == 'a'
"""


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "built"
    path.write_bytes(b"\x7fELF: CNI plugin, spec versions ")
    return path


def test_pools_are_applied_shown_and_deleted(cli: Cli, tmp_path: Path) -> None:
    """Manifests come from a file and from standard input."""
    (tmp_path / "pools.yaml").write_text(MANIFEST)
    assert cli.changes("pool", "apply", "-f", str(tmp_path / "pools.yaml")) == "pool4 created\npool6 created\n"
    assert cli.changes("pool", "apply", "-f", "-", stdin=MANIFEST) == "pool4 unchanged\npool6 unchanged\n"
    assert cli.prints("pool", "get") == TABLE
    assert cli.changes("pool", "delete", "pool6") == "pool6 deleted\n"
    assert cli.prints("pool", "get") == TABLE[: TABLE.index("pool6")]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_printed_pools_can_be_applied(cli: Cli, form: str) -> None:
    """Both output forms work, and the position of the option does not matter."""
    cli.changes("pool", "apply", "-f", "-", stdin=MANIFEST)
    printed = cli.prints("-o", form, "pool", "get")
    assert cli.prints("pool", "get", "-o", form) == printed
    assert cli.changes("pool", "apply", "-f", "-", stdin=printed) == "pool4 unchanged\npool6 unchanged\n"
    assert cli.changes("pool", "apply", "-f", "-", stdin=cli.prints("pool", "get", "pool6", "-o", form)) == "pool6 unchanged\n"


def test_nodes_are_applied_shown_and_deleted(cli: Cli) -> None:
    """Labels are given as KEY=VALUE."""
    assert cli.changes("node", "apply", "n1", "--label", "b=2", "--label", "a=x.y") == "n1 created\n"
    assert cli.prints("node", "get") == "NAME  LABELS\nn1    a=x.y,b=2\n"
    assert json.loads(cli.prints("node", "get", "n1", "-o", "json"))[0]["metadata"]["labels"] == {"a": "x.y", "b": "2"}
    assert cli.changes("node", "delete", "n1") == "n1 deleted\n"


def test_cluster_information_is_shown_and_locked(cli: Cli) -> None:
    """The embedded store creates its cluster information itself."""
    heading, line = cli.prints("clusterinfo", "show").splitlines()
    assert heading.split() == ["GUID", "TYPE", "VERSION", "READY"]
    assert line.endswith("yes")
    assert cli.changes("clusterinfo", "lock") == "locked\n"
    assert cli.changes("clusterinfo", "lock") == "already locked\n"
    assert cli.prints("clusterinfo", "show").splitlines()[1].endswith("no, locked")
    assert cli.changes("clusterinfo", "unlock") == "unlocked\n"
    assert cli.changes("clusterinfo", "unlock") == "not locked\n"
    command = ("--allow-version-mismatch", "clusterinfo", "init", "--type", "k8s", "--type", "bgp", "--cluster-version", "v1")
    assert cli.changes(*command) == "cluster information updated\n"
    assert cli.changes(*command) == "cluster information unchanged\n"
    (info,) = json.loads(cli.prints("clusterinfo", "show", "-o", "json", "--allow-version-mismatch"))
    assert (info["spec"]["clusterType"], info["spec"]["svcVersion"]) == ("k8s,bgp", "v1")


def test_names_profile_has_its_own_resources(cli: Cli) -> None:
    """They are in the same file, under other keys and in another API group."""
    cli.changes("pool", "apply", "-f", "-", stdin=MANIFEST)
    assert cli.changes("--names", "calico", "clusterinfo", "init") == "cluster information created\n"
    assert cli.prints("--names", "calico", "pool", "get").count("\n") == 1
    calico_manifest = MANIFEST.replace("svc.internal", "projectcalico.org")
    assert "apiVersion" in cli.fails("--names", "calico", "pool", "apply", "-f", "-", stdin=MANIFEST)
    assert cli.changes("--names", "calico", "pool", "apply", "-f", "-", stdin=calico_manifest).count("created") == 2
    printed = json.loads(cli.prints("--names", "calico", "pool", "get", "-o", "json"))
    assert {pool["apiVersion"] for pool in printed} == {"projectcalico.org/v3"}
    assert cli.fails("--names", "nobody", "pool", "get").startswith("Error: names profile 'nobody' does not exist")


@pytest.mark.parametrize("how", ["option", "environment", "list"])
def test_network_configuration_selects_the_datastore(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is given by option or environment, alone or as svc's entry of a list. Its errors are reported."""
    entry: dict[str, Any] = {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    conflist = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "portmap"}, entry]}
    plain = {"cniVersion": "1.0.0", "name": "net", **entry}
    file = tmp_path / "net.json"
    arguments = [] if how == "environment" else ["--netconf", str(file)]
    if how == "environment":
        monkeypatch.setenv("SVC_NETCONF", str(file))
    file.write_text(json.dumps(conflist if how == "list" else plain))
    assert cli.prints(*arguments, "pool", "get").startswith("NAME")
    file.write_text(json.dumps(plain | {"mtu": 1}))
    assert "mtu = 1 is out of range" in cli.fails(*arguments, "pool", "get")
    file.write_text(json.dumps({"plugins": [{"type": "portmap"}]}))
    assert "has no plugin of type 'svc'" in cli.fails(*arguments, "pool", "get")
    file.unlink()
    output = cli.fails(*arguments, "pool", "get")
    assert "cannot be read: No such file" in output
    assert ("which $SVC_NETCONF names" in output) == (how == "environment")


def test_install_records_the_directories(cli: Cli, tmp_path: Path, executable: Path) -> None:
    """The paths are absolute. The default socket is in the run directory."""
    folder = tmp_path / "bin"
    arguments = ("install", "--bin-dir", str(folder), "--executable", str(executable))
    files = ("svc.install", "svc-ipam.install", "svc-ipam", "svc")
    placed = [*(f"{folder}/{name}" for name in files), f"{tmp_path}/state/installed.json"]
    assert cli.prints(*arguments) == "".join(f"{path} installed\n" for path in placed)
    record = f"socket={tmp_path}/run/agent.sock\npython={sys.executable}\nstate_dir={tmp_path}/state\nrun_dir={tmp_path}/run\n"
    assert (folder / "svc.install").read_text().startswith(record + "file=")
    assert (folder / "svc.install").read_bytes() == (folder / "svc-ipam.install").read_bytes()
    assert cli.prints(*arguments).count("unchanged") == 5
    cli.prints(*arguments, "--socket", "/other.sock")
    assert (folder / "svc.install").read_text().startswith("socket=/other.sock\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("pool", "apply", "-f", "-"),
        ("node", "apply", "n1", "--label", "a b=1"),
        ("ipam", "configure", "--max-blocks-per-host", "2"),
    ],
)
def test_refused_change_makes_no_store(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    cli = Cli(tmp_path, fresh=False)
    (tmp_path / "state").mkdir()
    cli.fails(*arguments, stdin=MANIFEST.replace("10.", "127."))
    assert list((tmp_path / "state").iterdir()) == []


def test_each_view_of_ipam_is_shown_alone(cli: Cli) -> None:
    output = cli.fails("ipam", "show", "--show-blocks", "--show-configuration", code=2)
    assert "--show-blocks, --show-borrowed and --show-configuration exclude each other: give one of them" in output


def test_kubeconfig_of_the_resource_definitions_may_be_a_variable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help and error name it."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert "env var: KUBECONFIG" in " ".join(cli.prints("crd", "apply", "--help").split())
    assert "env var: 'KUBECONFIG'" in cli.fails("crd", "apply", code=2)


def test_version_needs_no_datastore(tmp_path: Path) -> None:
    """The command does not create one."""
    cli = Cli(tmp_path, fresh=False)
    for arguments in (("version",), ("version", "--client")):
        assert cli.prints(*arguments).startswith(f"client version   {__version__}\n")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pool", "get", "x"), "Error: IP pool 'x' does not exist: the datastore has none\n"),
        (("pool", "delete", "x"), "Error: IP pool 'x' does not exist: the datastore has none\n"),
        (("node", "delete", "x"), "Error: node 'x' does not exist: the datastore has none\n"),
    ],
    ids=" ".join,
)
def test_errors_are_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    """The line goes to standard error, and the exit status is 1."""
    assert cli.fails(*arguments) == message


def test_error_about_a_damaged_store_is_one_line(cli: Cli, tmp_path: Path) -> None:
    """The line has the path of the store."""
    (tmp_path / "state" / "store.db").write_text("not a database" * 100)
    error = cli.fails("pool", "get")
    assert f"{tmp_path}/state/store.db" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("pool", "nonsense"),
        ("pool", "apply"),
        ("pool", "apply", "-f", "/no/such/file"),
        ("-o", "xml", "pool", "get"),
        ("node", "apply", "n", "--label", "novalue"),
        ("install",),
        ("ipam", "configure"),
        ("ipam", "configure", "--kubevirt-ip-persistence", "Perhaps"),
        ("ipam", "show", "--ip", "10.77"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_status_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    """svcctl prints the usage."""
    assert "Usage:" in cli.fails(*arguments, code=2)


def test_wrong_boolean_is_answered_with_the_usual_words(cli: Cli) -> None:
    error = cli.fails("ipam", "configure", "--strictaffinity", "maybe", code=2)
    assert "'maybe' is not a boolean: write true or false" in error


def test_real_process_prints_and_exits(tmp_path: Path) -> None:
    """The process runs as a user starts it."""
    command = [
        sys.executable,
        "-c",
        "from svc.ctl.main import main; main(prog_name='svcctl')",
        "--state-dir",
        str(tmp_path),
    ]

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        done = subprocess.run([*command, *arguments], cwd=CHECKOUT, input=stdin, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    assert run("pool", "apply", "-f", "-", stdin=MANIFEST.replace(", natOutgoing: true", "")) == (
        0,
        f"pool4 created\npool6 created\ndatastore: embedded store {tmp_path}/store.db\n",
        "",
    )
    assert run("pool", "apply", "-f", "-", stdin=MANIFEST)[0] == 0
    assert run("pool", "get") == (0, TABLE, "")
    assert run("pool", "get", "x") == (1, "", "Error: IP pool 'x' does not exist: known: pool4, pool6\n")
    code, out, error = run("pool")
    assert (code, "Usage: svcctl" in out + error) == (2, True)


def test_start_imports_only_what_it_needs() -> None:
    """It imports neither other command groups nor the client packages of datastores."""
    program = (
        "import sys; from svc.ctl.main import main; main(['--version'], standalone_mode=False); "
        "print([name for name in ('svc.ctl.commands', 'kubernetes', 'grpc', 'pyroute2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
