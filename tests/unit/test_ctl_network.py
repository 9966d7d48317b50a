"""svcctl install: the network list, the version that its plugins share, and access to the Kubernetes API."""

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from svc.admin import installation
from svc.admin.account_access import Access
from svc.admin.installer import find_executable
from svc.ctl.main import main
from svc.model.errors import CallerError, PeerError
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

CALICO = load_profile("calico")
ALL = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}

MakePlugin = Callable[..., Path]


@pytest.fixture
def plugin(tmp_path: Path) -> MakePlugin:
    """Return a function that creates a plugin which supports only VERSION."""

    def make(name: str, supported: tuple[str, ...], folder: str = "cni") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        answer = json.dumps({"cniVersion": "1.0.0", "supportedVersions": supported})
        path.write_text(f"#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{answer}'\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """Return the directory of a pod's service account."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("secret-1")
    (folder / "ca.crt").write_text("authority")
    return folder


@pytest.mark.parametrize(
    ("versions", "at_most", "common"),
    [
        ([ALL, ALL], "1.1.0", "1.1.0"),
        ([ALL, ALL[:-1]], "1.1.0", "1.0.0"),
        ([ALL, ALL[:-1], ALL[:4]], "1.1.0", "0.3.1"),
        ([ALL, ("0.3.1", "9.0.0")], "1.1.0", "0.3.1"),
        ([("9.0.0", "0.3.1"), ("0.3.1", "9.0.0")], "1.1.0", "0.3.1"),
        ([ALL, ALL], "1.0.0", "1.0.0"),
    ],
)
def test_newest_common_version_is_used(plugin: MakePlugin, versions: Any, at_most: str, common: str) -> None:
    """svc knows the version, and it is not newer than that of the runtime."""
    programs = {f"p{number}": plugin(f"p{number}", supported) for number, supported in enumerate(versions)}
    assert installation.common_version(programs, at_most) == common


@pytest.mark.parametrize(("versions", "at_most"), [([ALL[:2], ALL[2:]], "1.1.0"), ([ALL[3:], ALL], "0.1.0")])
def test_missing_common_version_is_an_error(plugin: MakePlugin, versions: Any, at_most: str) -> None:
    """The error lists the versions of each plugin."""
    programs = {f"p{number}": plugin(f"p{number}", supported) for number, supported in enumerate(versions)}
    with pytest.raises(PeerError, match=f"no CNI version up to {at_most} in common") as caught:
        installation.common_version(programs, at_most)
    assert "p0: " in caught.value.details
    assert "--without" in caught.value.details


@pytest.mark.parametrize("answer", ["exit 3", "echo nonsense", "echo {}", "echo []", "echo '{\"supportedVersions\": 3}'"])
def test_plugin_without_a_valid_version_reply_is_an_error(tmp_path: Path, answer: str) -> None:
    """svcctl checks the plugins before it installs files."""
    (tmp_path / "odd").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "odd").chmod(0o755)
    with pytest.raises(PeerError, match=r"plugin 'odd' .* does not tell its versions"):
        installation.common_version({"odd": tmp_path / "odd"})


def test_plugins_are_found_in_the_order_of_the_directories(plugin: MakePlugin, tmp_path: Path) -> None:
    """A runtime uses the same order. One error names all missing plugins."""
    first, second = plugin("portmap", ALL, "one"), plugin("bandwidth", ALL, "two")
    plugin("portmap", ALL, "two")
    folders = [tmp_path / "one", tmp_path / "two"]
    assert installation.find_plugins(["portmap", "bandwidth"], folders) == {"portmap": first, "bandwidth": second}
    with pytest.raises(CallerError, match="plugins tuning, sbr are not in"):
        installation.find_plugins(["portmap", "tuning", "sbr"], folders)


def test_default_list_has_svc_portmap_and_bandwidth() -> None:
    """The list has the three plugins in this order."""
    entry = installation.default_entry(DEFAULT, "embedded", "", "")
    assert json.loads(installation.render(entry, ["portmap", "bandwidth"], "1.0.0", DEFAULT)) == {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "svc",
                "datastore_type": "embedded",
                "log_file_path": "/var/log/svc/cni/cni.log",
                "ipam": {"type": "svc-ipam"},
            },
            {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        ],
    }


def test_list_has_the_names_of_the_profile() -> None:
    """With the profile `calico`, the list has the field names of Calico."""
    entry = installation.default_entry(CALICO, "orch", "node1", "/etc/cni/net.d/calico-kubeconfig")
    assert entry == {
        "type": "calico",
        "datastore_type": "kubernetes",
        "log_file_path": "/var/log/calico/cni/cni.log",
        "ipam": {"type": "calico-ipam"},
        "nodename": "node1",
        "policy": {"type": "k8s"},
        "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
    }
    embedded = installation.default_entry(CALICO, "embedded", "", "")
    assert json.loads(installation.render(embedded, [], "1.0.0", CALICO))["name"] == "k8s-pod-network"


def test_given_entry_stays_unchanged() -> None:
    """Unknown fields stay. The name and the version move to the list."""
    entry = {"name": "mine", "cniVersion": "0.3.1", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    document = json.loads(installation.render(entry | {"novel": [1]}, ["portmap"], "1.0.0", DEFAULT))
    assert (document["name"], document["cniVersion"]) == ("mine", "1.0.0")
    assert document["plugins"][0] == {
        "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}, "novel": [1],
    }  # fmt: skip


def test_entry_that_svc_refuses_is_not_installed() -> None:
    """The error lists all errors of the entry."""
    with pytest.raises(CallerError, match="2 errors") as caught:
        installation.render(
            {"type": "svc", "datastore_type": "embedded", "mtu": 9, "ipam": {"type": "x"}}, [], "1.0.0", DEFAULT
        )
    assert "mtu" in caught.value.details


# Access to the Kubernetes API


def test_kubeconfig_uses_the_service_account(account: Path) -> None:
    """The kubeconfig names a separate file with the token. Only root can read the two files."""
    token, config = Access(account, IN_POD, Path("/etc/cni/net.d"), CALICO).files()
    assert (token.path.name, token.data, token.mode, token.renewed) == ("calico-token", b"secret-1", 0o600, True)
    assert (config.path.name, config.mode, config.renewed) == ("calico-kubeconfig", 0o600, False)
    document = yaml.safe_load(config.data)
    assert document["clusters"][0]["cluster"] == {
        "server": "https://10.96.0.1:443",
        "certificate-authority-data": base64.b64encode(b"authority").decode(),
    }
    assert document["users"] == [{"name": "calico", "user": {"tokenFile": "calico-token"}}]
    assert document["contexts"] == [{"name": "calico-context", "context": {"cluster": "local", "user": "calico"}}]
    assert document["current-context"] == "calico-context"
    assert b"secret-1" not in config.data


@pytest.mark.parametrize(
    ("environment", "server"),
    [
        (IN_POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
        (IN_POD | {"KUBERNETES_SERVICE_PROTOCOL": "http"}, "http://10.96.0.1:443"),
    ],
)
def test_address_of_the_api_server_comes_from_the_environment(account: Path, environment: dict[str, str], server: str) -> None:
    """Pods get the address in these variables."""
    _, config = Access(account, environment, Path("/x"), DEFAULT).files()
    assert yaml.safe_load(config.data)["clusters"][0]["cluster"]["server"] == server


def test_credentials_need_a_pod(account: Path) -> None:
    """The error says what is missing, and does not contain the token."""
    with pytest.raises(CallerError, match="KUBERNETES_SERVICE_HOST"):
        Access(account, {}, Path("/x"), DEFAULT).files()
    (account / "ca.crt").unlink()
    with pytest.raises(CallerError, match=r"ca\.crt") as caught:
        Access(account, IN_POD, Path("/x"), DEFAULT).files()
    assert "secret" not in str(caught.value)


# The command


class Installer:
    """svcctl install in this process, with plugins in CNI_PATH."""

    def __init__(self, folder: Path) -> None:
        self.bin_dir, self.conf_dir = folder / "bin", folder / "net.d"
        self.environment = {"CNI_PATH": str(folder / "cni")}
        self._directories = ("--state-dir", str(folder / "s"), "--run-dir", str(folder / "r"))

    def arguments(self, *more: str) -> list[str]:
        network = ("--bin-dir", str(self.bin_dir), "--conf-dir", str(self.conf_dir))
        return [*self._directories, "install", *network, "--executable", str(find_executable()), *more]

    def __call__(self, *more: str) -> Result:
        return CliRunner().invoke(main, self.arguments(*more), env=self.environment)

    def uninstall(self, *more: str) -> str:
        done = CliRunner().invoke(main, [*self._directories, "uninstall", "--bin-dir", str(self.bin_dir), *more])
        assert done.exit_code == 0, done.output
        return done.stdout

    def state(self) -> dict[str, tuple[int, int, int]]:
        """Return the identity of each file. A rewrite would change it."""
        files = [path for folder in (self.bin_dir, self.conf_dir) if folder.exists() for path in folder.iterdir()]
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode) for path in files}


@pytest.fixture
def installer(tmp_path: Path, plugin: MakePlugin) -> Installer:
    for name in installation.CHAINED:
        plugin(name, ALL[:-1])
    return Installer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [
        ({"datastore_type": "etcdv3", "etcd_endpoints": "http://h:1"}, "etcd3", "etcd"),
        ({"datastore_type": "kubernetes", "kubernetes": {"kubeconfig": "/k"}}, "kubernetes", "orch"),
        ({"policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "/k"}}, "kubernetes", "orch"),
    ],
)
def test_missing_package_of_the_network_is_an_error(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], package: str, extra: str
) -> None:
    """Nothing is written."""
    netconf = tmp_path / "netconf.json"
    netconf.write_text(json.dumps({"type": "svc", "ipam": {"type": "svc-ipam"}, **settings}))
    monkeypatch.setitem(sys.modules, package, None)
    before = sorted(tmp_path.iterdir())
    done = installer("--netconf", str(netconf))
    assert (done.exit_code, f"pip install 'svc-cni[{extra}]'" in done.stderr) == (1, True), done.output
    assert sorted(tmp_path.iterdir()) == before


def test_missing_files_of_the_network_are_warned_about(installer: Installer, tmp_path: Path) -> None:
    netconf, present = tmp_path / "netconf.json", tmp_path / "key"
    present.touch()
    files = {"etcd_key_file": str(present), "etcd_cert_file": "/no/cert", "etcd_ca_cert_file": "/no/ca"}
    etcd = {"datastore_type": "etcdv3", "etcd_endpoints": "https://h:1", **files}
    netconf.write_text(
        json.dumps({"type": "svc", "ipam": {"type": "svc-ipam"}, "kubernetes": {"kubeconfig": "/no/config"}} | etcd)
    )
    done = installer("--netconf", str(netconf))
    assert done.exit_code == 0, done.output
    warned = [line.split()[1] for line in done.stderr.splitlines() if "does not exist" in line]
    assert sorted(warned) == ["/no/ca", "/no/cert", "/no/config"]
    assert "does not exist" not in installer("--netconf", str(netconf), "--host-conf-dir", "/on/the/host").stderr


def test_network_is_installed_with_the_executables(installer: Installer) -> None:
    """The list has the newest common version. A second install changes nothing, and uninstall removes all files."""
    assert installer().exit_code == 0
    document = json.loads((installer.conf_dir / "10-svc.conflist").read_text())
    assert (document["cniVersion"], [plugin["type"] for plugin in document["plugins"]]) == (
        "1.0.0",
        ["svc", "portmap", "bandwidth"],
    )
    assert stat.S_IMODE((installer.conf_dir / "10-svc.conflist").stat().st_mode) == 0o600
    before = installer.state()
    again = installer()
    assert again.stdout.count("unchanged") == 6
    assert installer.state() == before
    assert installer.uninstall().count("removed") == 6
    assert installer.state() == {}


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (
            (),
            "note: portmap and bandwidth allow only CNI 1.0.0, so the runtime will not call GC and STATUS. "
            "For 1.1.0: install containernetworking",
        ),
        (
            ("--cni-version", "0.4.0"),
            "note: --cni-version asks for CNI 0.4.0, so the runtime will not call GC and STATUS\n",
        ),
        (
            ("--netconf", "list"),
            "note: --netconf asks for CNI 0.3.1, so the runtime will not call GC and STATUS\n",
        ),
        (
            ("--netconf", "list", "--cni-version", "1.1.0"),
            "note: portmap and bandwidth allow only CNI 1.0.0, so the runtime will not call GC and STATUS. ",
        ),
        (("--without", "portmap", "--without", "bandwidth"), ""),
    ],
)
def test_network_without_gc_and_status_causes_a_warning(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], warning: str
) -> None:
    """A runtime may know no newer version than that of its present list."""
    monkeypatch.chdir(tmp_path)
    entry = {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    Path("list").write_text(json.dumps({"name": "n", "cniVersion": "0.3.1", "plugins": [entry]}))
    done = installer(*options)
    assert done.exit_code == 0, done
    assert warning in done.stderr
    assert ("GC and STATUS" in done.stderr) == bool(warning)


@pytest.mark.parametrize(
    ("ipam", "ignored"),
    [
        ({"type": "svc-ipam", "routes": []}, "ipMasq, args.cni.ips, ipam.subnet, ipam.routes"),
        ({"type": "host-local"}, "ipMasq, args.cni.ips"),
    ],
)
def test_fields_of_other_plugins_cause_one_warning(
    installer: Installer, tmp_path: Path, ipam: dict[str, Any], ignored: str
) -> None:
    """host-local reads those of its section."""
    netconf, others = tmp_path / "netconf.json", {"ipMasq": True, "args": {"cni": {"ips": ["10.0.0.7"]}}}
    ipam = {"subnet": "10.0.0.0/24", **ipam}
    netconf.write_text(json.dumps({"type": "svc", "datastore_type": "embedded", "ipam": ipam, **others}))
    done = installer("--netconf", str(netconf))
    assert done.exit_code == 0, done.output
    assert f"warning: the network has fields of other plugins, which svc ignores: {ignored}\n" in done.stderr


def test_other_plugins_of_a_given_list_are_kept_with_a_warning(
    installer: Installer, plugin: MakePlugin, tmp_path: Path
) -> None:
    """They come last, unchanged, and limit the CNI version. Known plugins are not added twice."""
    plugin("tuning", ALL[:4])
    own_entry = {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    tuning = {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}}
    given = {"name": "mine", "cniVersion": "1.0.0", "plugins": [own_entry, tuning, {"type": "portmap"}]}
    (tmp_path / "mine.conflist").write_text(json.dumps(given))
    done = installer("--netconf", str(tmp_path / "mine.conflist"))
    assert done.exit_code == 0, done
    warning, _ = done.stderr.splitlines()
    assert warning == "warning: plugin 'tuning' is kept in the chain, but only portmap and bandwidth are supported there"
    document = json.loads((installer.conf_dir / "10-svc.conflist").read_text())
    assert document["cniVersion"] == "0.3.1"
    assert document["plugins"] == [own_entry, *installation.CHAINED.values(), tuning]


@pytest.mark.parametrize("odd", [{}, {"type": ""}, "tuning", None])
def test_plugin_without_a_type_is_refused(installer: Installer, tmp_path: Path, odd: object) -> None:
    own_entry = {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    (tmp_path / "mine.conflist").write_text(json.dumps({"name": "mine", "plugins": [own_entry, odd]}))
    done = installer("--netconf", str(tmp_path / "mine.conflist"))
    assert done.exit_code == 1
    assert "has a plugin without a type" in done.stderr
    assert installer.state() == {}


def test_chained_plugins_can_be_omitted(installer: Installer) -> None:
    """They need not exist, and the version is the newest of svc."""
    assert installer("--without", "portmap", "--without", "bandwidth").exit_code == 0
    document = json.loads((installer.conf_dir / "10-svc.conflist").read_text())
    assert (document["cniVersion"], len(document["plugins"])) == ("1.1.0", 1)


@pytest.mark.parametrize(("use_pod_cidr", "warned"), [("", True), ("true", False)])
def test_pod_cidrs_cause_a_warning_if_the_deployment_does_not_use_them(
    installer: Installer, tmp_path: Path, use_pod_cidr: str, warned: bool
) -> None:
    entry = {"type": "svc", "datastore_type": "orch", "orch": {"kubeconfig": "/k"}}
    file = tmp_path / "entry.json"
    file.write_text(json.dumps(entry | {"ipam": {"type": "host-local", "subnet": "usePodCidr"}}))
    installer.environment |= {"USE_POD_CIDR": use_pod_cidr}
    done = installer("--netconf", str(file))
    assert (done.exit_code, "USE_POD_CIDR is not true" in done.stderr) == (0, warned)


@pytest.mark.parametrize("cause", ["plugin", "netconf", "executable", "names"])
def test_failed_installation_changes_nothing(installer: Installer, tmp_path: Path, cause: str) -> None:
    """The previous installation stays intact."""
    assert installer().exit_code == 0
    before = installer.state()
    (tmp_path / "bad.json").write_text('{"type": "svc", "mtu": 1}')
    if cause == "plugin":
        (tmp_path / "cni" / "portmap").unlink()
    more = {"netconf": ("--netconf", str(tmp_path / "bad.json")), "executable": ("--executable", "/bin/sh.not")}.get(cause, ())
    failed = installer(*more, *(("--names", "nobody") if cause == "names" else ()))
    assert failed.exit_code == 1
    assert failed.stderr.startswith("Error: ")
    assert failed.stderr.count("\n") == (3 if cause == "netconf" else 1)
    assert installer.state() == before


def test_two_profiles_can_be_installed(installer: Installer) -> None:
    """Their files have different names in the same directories. Each profile is uninstalled separately."""
    assert installer().exit_code == 0
    before = installer.state()
    assert installer("--names", "calico").exit_code == 0
    assert "profile=calico\n" in (installer.bin_dir / "calico.install").read_text()
    assert (installer.conf_dir / "10-calico.conflist").exists()
    installer.uninstall("--names", "calico")
    assert installer.state() == before


def test_watch_needs_a_token(installer: Installer) -> None:
    """No other file changes by itself."""
    assert installer("--watch").exit_code == 2


def test_watched_token_is_renewed(installer: Installer, account: Path) -> None:
    """svcctl copies each new token of the pod until SIGTERM. The list has the path of the kubeconfig on the host."""
    installer.environment |= IN_POD | {"KUBERNETES_NODE_NAME": "node-7"}
    access = ("--datastore", "orch", "--service-account", str(account), "--host-conf-dir", "/etc/cni/net.d")
    program = "from svc.ctl.main import main; main(prog_name='svcctl')"
    command = [sys.executable, "-c", program, *installer.arguments(*access, "--watch")]
    with subprocess.Popen(command, env=os.environ | installer.environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            lines = [running.stdout.readline() for _ in range(8)]
            assert all(line.endswith("installed\n") for line in lines), lines
            entry = json.loads((installer.conf_dir / "10-svc.conflist").read_text())["plugins"][0]
            assert (entry["orch"]["kubeconfig"], entry["nodename"]) == ("/etc/cni/net.d/svc-kubeconfig", "node-7")
            draft = account / "draft"
            draft.write_text("secret-2")
            draft.rename(account / "token")
            assert running.stdout.readline() == f"{installer.conf_dir}/svc-token renewed\n"
            assert (installer.conf_dir / "svc-token").read_text() == "secret-2"
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    assert installer.uninstall().count("removed") == 8


def test_pools_are_applied_with_credentials_that_are_installed_later(
    tmp_path: Path, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are used from a temporary directory. If the datastore does not answer, no file is installed."""
    opened = []

    def open_backend(settings: dict[str, str], *_: object) -> None:
        kubeconfig = Path(settings["kubeconfig"])
        opened.append((kubeconfig.parent, yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["tokenFile"]))
        raise PeerError("no answer")

    monkeypatch.setattr("svc.ctl.commands.install.open_backend", open_backend)
    monkeypatch.setattr("os.environ", {**os.environ, **IN_POD})
    head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
    resource, conf_dir = tmp_path / "installation.json", tmp_path / "net.d"
    resource.write_text(json.dumps(head | {"spec": {DEFAULT.operator_network: {}}}))
    done = CliRunner().invoke(main, [
        "--state-dir", str(tmp_path / "state"), "install", "--bin-dir", str(tmp_path / "cni"), "--conf-dir", str(conf_dir),
        "--host-conf-dir", "/on/the/host", "--without", "portmap", "--without", "bandwidth", "--datastore", "orch",
        "--service-account", str(account), "--installation", str(resource), "--apply-pools",
    ])  # fmt: skip
    assert (done.exit_code, done.stderr) == (1, "Error: no answer\n")
    [(folder, token)] = opened
    assert token == "svc-token"
    assert not folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"installation.json", "serviceaccount"}
