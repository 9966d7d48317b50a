"""svcctl: which datastore it works on, and what it says about it."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from harness.svcctl import Cli
from svc.ctl import cli_context
from svc.ctl.cli_context import CliContext, Target
from svc.model.errors import CallerError
from svc.names import DEFAULT
from svc.netconf.installed import FILE_NAME, Installed, add_installed, read_installed, read_networks, remove_installed

ETCD = {"datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"}
POOL = '{"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": "p"}, "spec": {"cidr": "10.9.0.0/24"}}'


def network_list(path: Path, plugin: str = "svc", **settings: Any) -> Path:
    entry = {"type": plugin, "datastore_type": "embedded", "ipam": {"type": f"{plugin}-ipam"}, **settings}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [entry, {"type": "portmap"}]}))
    return path


def record(state_dir: Path, list_path: Path | str = "", profile: str = "", bin_dir: str = "/b") -> None:
    add_installed(state_dir, Installed(profile, bin_dir, (f"{bin_dir}/svc",), str(list_path), ""))


@pytest.fixture
def bare(tmp_path: Path) -> Cli:
    """svcctl in a state directory that nothing was ever installed for."""
    return Cli(tmp_path, fresh=False)


def chosen(folder: Path, *, profile: str = "", netconf: Path | None = None) -> Target:
    return CliContext(folder, folder, profile=profile, netconf=netconf).target


def test_installed_network_says_which_datastore(tmp_path: Path, bare: Cli) -> None:
    """Neither a file nor a directory appears for a datastore that is not meant."""
    state_dir = tmp_path / "state"
    record(state_dir, network_list(tmp_path / "net.d" / "10-svc.conflist", **ETCD))
    assert str(chosen(state_dir)) == f"etcd http://127.0.0.1:1, from {tmp_path}/net.d/10-svc.conflist"
    assert "127.0.0.1:1" in bare.fails("clusterinfo", "lock")
    assert [path.name for path in state_dir.iterdir()] == [FILE_NAME]
    assert bare.prints("--embedded", "pool", "apply", "-f", "-", stdin=POOL).splitlines() == [
        "p created",
        f"datastore: embedded store {state_dir}/store.db, from --embedded",
    ]


def test_option_comes_before_variable_before_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of either profile counts."""
    record(tmp_path, network_list(tmp_path / "recorded", **ETCD))
    variable = network_list(tmp_path / "variable", datastore_type="etcdv3", etcd_endpoints="http://v:1")
    option = network_list(tmp_path / "option", datastore_type="etcdv3", etcd_endpoints="http://o:1")
    assert "http://127.0.0.1:1" in str(chosen(tmp_path))
    monkeypatch.setenv("SVC_NETCONF", str(variable))
    assert str(chosen(tmp_path)) == f"etcd http://v:1, from {variable}, which $SVC_NETCONF names"
    assert str(chosen(tmp_path, netconf=option)) == f"etcd http://o:1, from {option}"
    network_list(variable, "calico", datastore_type="etcdv3", etcd_endpoints="http://c:1")
    assert "http://c:1" in str(chosen(tmp_path, profile="calico"))


def test_installed_names_are_used(tmp_path: Path) -> None:
    """If they are the only ones; an explicit profile comes before."""
    record(tmp_path, network_list(tmp_path / "calico.conflist", "calico", **ETCD), "calico")
    assert chosen(tmp_path).names.plugin == "calico"
    assert "127.0.0.1:1" in str(chosen(tmp_path))
    assert chosen(tmp_path, profile="default").names.plugin == "svc"
    record(tmp_path)
    with pytest.raises(CallerError, match="several names profiles are installed: calico, default"):
        chosen(tmp_path)


def test_network_lists_of_several_datastores_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        record(tmp_path, network_list(tmp_path / f"{number}", **ETCD), bin_dir=f"/{number}")
    assert "127.0.0.1:1" in str(chosen(tmp_path))
    network_list(tmp_path / "1", datastore_type="embedded")
    with pytest.raises(CallerError, match="several datastores"):
        chosen(tmp_path)


def test_unusable_network_list_is_an_error(tmp_path: Path) -> None:
    """Another datastore is never taken in its place."""
    record(tmp_path, tmp_path / "missing.conflist")
    with pytest.raises(CallerError, match=r"missing.conflist' cannot be read") as caught:
        chosen(tmp_path)
    assert "--netconf" in caught.value.details


def test_network_list_of_the_node_counts_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with the default state directory."""
    monkeypatch.setattr(cli_context, "NETWORKS", tmp_path)
    network_list(tmp_path / "10-svc.conflist", **ETCD)
    (tmp_path / "20-other.conf").write_text('{"type": "bridge"}')
    (tmp_path / "30-broken.conflist").write_text("{")
    assert "127.0.0.1:1" in str(chosen(Path("/var/lib/svc")))
    assert "embedded" in str(chosen(tmp_path / "state"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "etcdv3", "etcd_endpoints": "https://me:secret@a:1,https://b:2"}, "etcd https://...@a:1,https://b:2"),
        ({"kind": "etcdv3", "etcd_discovery_srv": "d.example"}, "etcd by the SRV records of d.example"),
        ({"kind": "etcdv3"}, "etcd http://127.0.0.1:2379"),
        ({"kind": "orch", "orch_api_root": "https://me:secret@a"}, "Kubernetes API https://...@a"),
        ({"kind": "orch", "kubeconfig": "/k"}, "Kubernetes API of kubeconfig /k"),
        ({"kind": "orch", "k8s_auth_token": "secret"}, "Kubernetes API of this pod's service account"),
    ],
)
def test_datastores_are_named_without_credentials(settings: dict[str, str], text: str, tmp_path: Path) -> None:
    assert str(Target(DEFAULT, settings, tmp_path)) == text


READS = [("pool", "get"), ("node", "get"), ("ipam", "show"), ("clusterinfo", "show"), ("ipam", "show", "--ip", "10.0.0.1")]
CHANGES = [("pool", "apply", "-f", "-"), ("node", "apply", "n"), ("clusterinfo", "lock"), ("pool", "delete", "p")]


@pytest.mark.parametrize("arguments", [*READS, *CHANGES], ids=" ".join)
def test_mistyped_state_directory_is_an_error(bare: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """With the remedy, and nothing appears."""
    told = bare.fails(*arguments, stdin=POOL)
    assert f"{tmp_path}/state/store.db does not exist" in told
    assert "--state-dir" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_reading_never_creates_a_store(bare: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Not in a directory that exists either; the first change does."""
    (tmp_path / "state").mkdir()
    assert "store.db does not exist" in bare.fails(*arguments)
    assert list((tmp_path / "state").iterdir()) == []
    assert f"datastore: embedded store {tmp_path}/state/store.db\n" in bare.prints("pool", "apply", "-f", "-", stdin=POOL)


def test_install_records_what_it_wrote(bare: Cli, tmp_path: Path) -> None:
    """For each profile and directory; uninstall removes its own entry, from the state directory of the executables."""
    executable = tmp_path / "built"
    executable.write_bytes(b"\x7fELF, or at least it begins like one")
    arguments = ("install", "--bin-dir", str(tmp_path / "bin"), "--executable", str(executable))
    bare.prints(*arguments)
    bare.prints(*arguments, "--names", "calico")
    own, other = read_installed(tmp_path / "state")
    assert own == Installed("", str(tmp_path / "bin"), tuple(str(tmp_path / "bin" / name) for name in ("svc", "svc-ipam")))
    assert other.profile == "calico"
    assert stat.S_IMODE((tmp_path / "state" / FILE_NAME).stat().st_mode) == 0o600
    assert bare.prints(*arguments).splitlines()[-1] == f"{tmp_path}/state/{FILE_NAME} unchanged"
    Cli(tmp_path / "elsewhere", fresh=False).prints("uninstall", "--bin-dir", str(tmp_path / "bin"))
    assert read_installed(tmp_path / "state") == (other,)


def test_earlier_network_list_stays_recorded(tmp_path: Path) -> None:
    """An installation of executables alone does not remove it."""
    record(tmp_path, "/net.d/list")
    record(tmp_path)
    assert [entry.network_list for entry in read_installed(tmp_path)] == ["/net.d/list"]
    remove_installed(tmp_path, "", "/b")
    assert read_installed(tmp_path) == ()


def test_agent_reads_the_installed_networks(tmp_path: Path) -> None:
    """Those that can be used, and the errors of the others; the host's path counts where the installer's does not exist."""
    path = network_list(tmp_path / "list", **ETCD)
    add_installed(tmp_path, Installed("", "/b", (), "/not/here", str(path)))
    record(tmp_path, tmp_path / "missing", bin_dir="/c")
    networks, errors = read_networks(tmp_path)
    assert [(network.path, network.profile, network.netconf.datastore.kind) for network in networks] == [(path, "", "etcdv3")]
    assert [error.msg for error in errors] == [f"file '{tmp_path}/missing' cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"version": 2}', '{"version": 1, "installations": [{}]}', "[" * 100_000],
    ids=["empty", "broken", "array", "null", "newer", "incomplete", "deep"],
)
def test_damaged_record_is_an_error(bare: Cli, tmp_path: Path, content: str) -> None:
    """It names the file and what to do."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE_NAME).write_text(content)
    assert f"'{tmp_path}/state/{FILE_NAME}'" in bare.fails("pool", "get")


def test_errors_of_an_installed_network_have_a_line_each(bare: Cli, tmp_path: Path) -> None:
    file = network_list(tmp_path / "net.d" / "10-svc.conflist", mtu=1, ipam=3)
    record(tmp_path / "state", file)
    first, *lines = bare.fails("pool", "get").splitlines()
    assert first.startswith("Error: an installed network cannot be used (repeat `svcctl install ")
    assert first.endswith(f", or give --netconf): invalid network configuration '{file}': 2 errors")
    assert sorted(line.split()[0] for line in lines) == ["ipam", "mtu"]


def test_file_is_named_once_if_it_is_not_json(bare: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    assert bare.fails("--netconf", str(tmp_path / "bad.json"), "pool", "get").count("bad.json") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON: "),
        ("datastore_type: embedded\n", "is not JSON: "),
        ("", "is empty"),
        ("[]", "is an array, not an object"),
        ('{"name": "a", "mtu": 1, "mtu": 2}', "has the key 'mtu' twice in an object: keep one of them"),
        ('{"plugins": [{"type": "svc", "ipam": {"type": "a", "type": "b"}}]}', "has the key 'type' twice in an object"),
        ('{"plugins": [{"type": "other"}]}', "has no plugin of type 'svc'"),
        ('{"name": "a b", "type": "svc", "ipam": {"type": "svc-ipam"}}', "name = 'a b' is not a network name"),
    ],
)
def test_network_configuration_that_cannot_be_used_is_named(bare: Cli, tmp_path: Path, text: str, told: str) -> None:
    """The file, and not standard input."""
    (tmp_path / "bad.json").write_text(text)
    error = bare.fails("--netconf", str(tmp_path / "bad.json"), "pool", "get")
    assert str(tmp_path / "bad.json") in error
    assert told in error
    assert "stdin" not in error
