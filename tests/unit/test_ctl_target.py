"""svcctl: the datastore that it selects, and how messages name it."""

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
    """Return svcctl with a state directory that has no installation."""
    return Cli(tmp_path, fresh=False)


def select(folder: Path, *, profile: str = "", netconf: Path | None = None) -> Target:
    return CliContext(folder, folder, profile=profile, netconf=netconf).target


def test_installed_network_selects_the_datastore(tmp_path: Path, bare: Cli) -> None:
    """svcctl creates no file or directory for another datastore."""
    state_dir = tmp_path / "state"
    record(state_dir, network_list(tmp_path / "net.d" / "10-svc.conflist", **ETCD))
    assert str(select(state_dir)) == f"etcd http://127.0.0.1:1, from {tmp_path}/net.d/10-svc.conflist"
    assert "127.0.0.1:1" in bare.fails("clusterinfo", "lock")
    assert [path.name for path in state_dir.iterdir()] == [FILE_NAME]
    assert bare.prints("--embedded", "pool", "apply", "-f", "-", stdin=POOL).splitlines() == [
        "p created",
        f"datastore: embedded store {state_dir}/store.db, from --embedded",
    ]


def test_option_overrides_variable_and_variable_overrides_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable applies to each names profile."""
    record(tmp_path, network_list(tmp_path / "recorded", **ETCD))
    variable = network_list(tmp_path / "variable", datastore_type="etcdv3", etcd_endpoints="http://v:1")
    option = network_list(tmp_path / "option", datastore_type="etcdv3", etcd_endpoints="http://o:1")
    assert "http://127.0.0.1:1" in str(select(tmp_path))
    monkeypatch.setenv("SVC_NETCONF", str(variable))
    assert str(select(tmp_path)) == f"etcd http://v:1, from {variable}, which $SVC_NETCONF names"
    assert str(select(tmp_path, netconf=option)) == f"etcd http://o:1, from {option}"
    network_list(variable, "calico", datastore_type="etcdv3", etcd_endpoints="http://c:1")
    assert "http://c:1" in str(select(tmp_path, profile="calico"))


def test_missing_store_is_named_with_its_origin(bare: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, path = f"the embedded store {tmp_path}/state/store.db does not exist", network_list(tmp_path / "list")
    assert f"{store} (from {path}): " in bare.fails("pool", "get", "--netconf", str(path))
    monkeypatch.setenv("SVC_NETCONF", str(path))
    assert f"{store} (from {path}, which $SVC_NETCONF names): " in bare.fails("pool", "get")


def test_installed_names_are_used(tmp_path: Path) -> None:
    """This needs a single installed profile. An explicit profile overrides it."""
    record(tmp_path, network_list(tmp_path / "calico.conflist", "calico", **ETCD), "calico")
    assert select(tmp_path).names.plugin == "calico"
    assert "127.0.0.1:1" in str(select(tmp_path))
    assert select(tmp_path, profile="default").names.plugin == "svc"
    record(tmp_path)
    with pytest.raises(CallerError, match="several names profiles are installed: calico, default"):
        select(tmp_path)


def test_network_lists_of_several_datastores_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        record(tmp_path, network_list(tmp_path / f"{number}", **ETCD), bin_dir=f"/{number}")
    assert "127.0.0.1:1" in str(select(tmp_path))
    network_list(tmp_path / "1", datastore_type="embedded")
    with pytest.raises(CallerError, match="several datastores"):
        select(tmp_path)


def test_unusable_network_list_is_an_error(tmp_path: Path) -> None:
    """svcctl does not fall back to another datastore."""
    record(tmp_path, tmp_path / "missing.conflist")
    with pytest.raises(CallerError, match=r"missing.conflist' cannot be read") as caught:
        select(tmp_path)
    assert "--netconf" in caught.value.details


def test_network_list_of_the_node_is_used_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds only with the default state directory."""
    monkeypatch.setattr(cli_context, "NETWORKS", tmp_path)
    network_list(tmp_path / "10-svc.conflist", **ETCD)
    (tmp_path / "20-other.conf").write_text('{"type": "bridge"}')
    (tmp_path / "30-broken.conflist").write_text("{")
    assert "127.0.0.1:1" in str(select(Path("/var/lib/svc")))
    assert "embedded" in str(select(tmp_path / "state"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "etcdv3", "etcd_endpoints": "https://me:secret@a:1,https://b:2"}, "etcd https://...@a:1,https://b:2"),
        ({"kind": "etcdv3", "etcd_discovery_srv": "d.example"}, "etcd by the SRV records of d.example"),
        ({"kind": "etcdv3"}, "etcd http://127.0.0.1:2379"),
        ({"kind": "orch", "orch_api_root": "https://me:secret@a"}, "Kubernetes API https://...@a"),
        ({"kind": "orch", "orch_api_root": "https://a:6443/?token=secret"}, "Kubernetes API https://a:6443/?..."),
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
    """The error has the fix, and svcctl creates no file."""
    message = bare.fails(*arguments, stdin=POOL)
    assert f"{tmp_path}/state/store.db does not exist" in message
    assert message.startswith(f"Error: the embedded store {tmp_path}/state/store.db does not exist: name ")
    assert "--state-dir" in message
    assert list(tmp_path.iterdir()) == []


def test_options_may_follow_the_command(tmp_path: Path) -> None:
    """Options that follow override those before, and a command's own option of the name is not replaced."""
    cli, other = Cli(tmp_path), Cli(tmp_path / "other")
    etcd = str(network_list(tmp_path / "etcd", **ETCD))
    cli.prints("pool", "apply", "-f", "-", stdin=POOL)
    assert "10." in cli.prints("pool", "get")
    assert "10." not in cli.prints("pool", "get", "--state-dir", str(other.folder / "state"))
    assert "10." in other.prints("pool", "get", "--state-dir", str(cli.folder / "state"), "--embedded")
    assert "10." in other.prints("pool", "--state-dir", str(cli.folder / "state"), "get", "--names", "svc")
    assert "127.0.0.1:1" in cli.fails("clusterinfo", "show", "--netconf", etcd)
    exclusive = "--embedded and --netconf exclude each other"
    assert exclusive in cli.fails("--embedded", "pool", "get", "--netconf", etcd, code=2)
    executable = tmp_path / "built"
    executable.write_bytes(b"\x7fELF: CNI plugin, spec versions ")
    files = ("--bin-dir", str(tmp_path / "bin"), "--executable", str(executable))
    cli.prints("install", *files, "--state-dir", str(tmp_path / "s"))
    assert (tmp_path / "s").is_dir()


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_reading_never_creates_a_store(bare: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """The first change creates it."""
    (tmp_path / "state").mkdir()
    assert "store.db does not exist" in bare.fails(*arguments)
    assert list((tmp_path / "state").iterdir()) == []
    assert f"datastore: embedded store {tmp_path}/state/store.db\n" in bare.prints("pool", "apply", "-f", "-", stdin=POOL)


def test_install_records_its_files(bare: Cli, tmp_path: Path) -> None:
    """Each profile and directory has an entry. Uninstall removes its entry from the state directory of the executables."""
    executable = tmp_path / "built"
    executable.write_bytes(b"\x7fELF: CNI plugin, spec versions ")
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
    """It gets the usable networks and the errors of the others. If the installer's path is missing, the host's path is used."""
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
    """The error names the file."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE_NAME).write_text(content)
    assert f"'{tmp_path}/state/{FILE_NAME}'" in bare.fails("pool", "get")


def test_each_error_of_an_installed_network_has_its_own_line(bare: Cli, tmp_path: Path) -> None:
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
    ("text", "message"),
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
def test_error_names_the_unusable_network_configuration(bare: Cli, tmp_path: Path, text: str, message: str) -> None:
    """It names the file, not standard input."""
    (tmp_path / "bad.json").write_text(text)
    error = bare.fails("--netconf", str(tmp_path / "bad.json"), "pool", "get")
    assert str(tmp_path / "bad.json") in error
    assert message in error
    assert "stdin" not in error
