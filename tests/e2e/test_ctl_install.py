"""svcctl install and uninstall on nodes with files of another deployment or with another names profile."""

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.netns import run
from harness.node import BIN, netconf

Json = dict[str, Any]

PROGRAM = b"\x7fELF of another deployment"
BARE = ("--without", "portmap", "--without", "bandwidth")
EMBEDDED: Json = {"type": "calico", "datastore_type": "embedded", "ipam": {"type": "calico-ipam"}}


Files = dict[str, tuple[bytes, int]]
"""Content and mode of each file."""


class Machine:
    """The directories of `svcctl install`, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin_dir, self.conf_dir, self.units = (folder / name for name in ("bin", "net.d", "units"))
        self.conflist = self.conf_dir / "10-calico.conflist"

    def run(self, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        directories = ("--state-dir", str(self.folder / "state"), "--run-dir", str(self.folder / "run"))
        command = [*prefix, str(BIN / "svcctl"), *directories, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def install(self, *more: str, bin_dir: str = "bin", prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        return self.run("install", "--bin-dir", str(self.folder / bin_dir), *more, prefix=prefix)

    def install_network(self, *more: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        return self.install("--names", "calico", "--conf-dir", str(self.conf_dir), *BARE, *more, prefix=prefix)

    def install_unit(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.install("--systemd", "--unit-dir", str(self.units), *more)

    def uninstall(self, *more: str, bin_dir: str = "bin") -> str:
        done = self.run("uninstall", "--bin-dir", str(self.folder / bin_dir), *more)
        assert done.returncode == 0, done
        return done.stdout

    def files(self) -> Files:
        """Return content and mode of every file, except those in the state directory."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and path.parent.name != "state"]
        return {str(path.relative_to(self.folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in paths}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def occupied(machine: Machine) -> Machine:
    """Return a machine with executables and a network list of another deployment."""
    occupy(machine)
    return machine


def occupy(machine: Machine) -> None:
    machine.bin_dir.mkdir()
    machine.conf_dir.mkdir()
    for name in ("calico", "calico-ipam"):
        (machine.bin_dir / name).write_bytes(PROGRAM + name.encode())
        (machine.bin_dir / name).chmod(0o755)
    entry = {"type": "calico", "datastore_type": "kubernetes", "kubernetes": {"kubeconfig": "/k"}}
    write_list(machine.conflist, entry | {"ipam": {"type": "calico-ipam"}, "policy": {"type": "k8s"}})


def write_list(path: Path, entry: Json) -> None:
    path.write_text(json.dumps({"name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": [entry]}))


def entry_of(path: Path) -> Any:
    return json.loads(path.read_text())["plugins"][0]


# files of another deployment


def test_network_list_of_another_deployment_is_not_replaced_without_an_option(occupied: Machine) -> None:
    before = occupied.files()
    done = occupied.install_network()
    assert done.returncode == 1
    assert f"network list '{occupied.conflist}' is of another deployment, with datastore 'kubernetes'" in done.stderr
    assert f"--netconf {occupied.conflist}" in done.stderr
    assert "move it away" in done.stderr
    assert occupied.files() == before


def test_files_of_another_deployment_are_replaced_and_restored(occupied: Machine, tmp_path: Path) -> None:
    """The option that the error names replaces them. Each original stays until uninstall, even after several installs."""
    before = occupied.files()
    done = occupied.install_network("--netconf", str(occupied.conflist))
    assert done.returncode == 0, done
    for path in (occupied.conflist, occupied.bin_dir / "calico", occupied.bin_dir / "calico-ipam"):
        assert f"{path} installed; what was there is kept as {path.name}.before-svc\n" in done.stdout
        name = str(path.relative_to(tmp_path))
        assert occupied.files()[f"{name}.before-svc"] == before[name]
    assert entry_of(occupied.conflist)["datastore_type"] == "kubernetes"
    installed = occupied.files()
    assert (
        "kept" not in occupied.install_network().stdout + occupied.install_network("--netconf", str(occupied.conflist)).stdout
    )
    assert {name for name in occupied.files() if "before" in name or "replaced" in name} == {
        f"{name}.before-svc" for name in before
    }
    assert occupied.files().keys() == installed.keys()
    assert occupied.uninstall("--names", "calico").count("put back: the original") == 3
    assert occupied.files() == before


def test_executable_of_another_deployment_is_restored(occupied: Machine) -> None:
    """This also holds if no network list is installed."""
    before = occupied.files()
    assert occupied.install("--names", "calico").stdout.count("kept as calico") == 2
    occupied.uninstall("--names", "calico")
    assert occupied.files() == before


def test_files_that_another_deployment_writes_again_are_kept(occupied: Machine) -> None:
    """Its installer still runs. Uninstall restores the first originals."""
    before = occupied.files()
    netconf = ("--netconf", str(occupied.conflist))
    occupied.install_network(*netconf)
    (occupied.bin_dir / "calico").write_bytes(PROGRAM + b", version 2")
    write_list(occupied.conflist, EMBEDDED | {"datastore_type": "etcdv3", "etcd_endpoints": "http://192.0.2.1:2379"})
    again = occupied.conflist.read_bytes()
    refused = occupied.install_network()
    assert (refused.returncode, "with datastore 'etcdv3'" in refused.stderr) == (1, True)
    done = occupied.install_network(*netconf)
    assert done.returncode == 0, done
    assert done.stdout.count("what was there is kept as") == 2
    kept = {name: data for name, (data, _) in occupied.files().items() if ".replaced-" in name}
    assert sorted(kept.values()) == sorted([PROGRAM + b", version 2", again])
    occupied.uninstall("--names", "calico")
    assert {name: file for name, file in occupied.files().items() if name not in kept} == before


def test_uninstall_keeps_a_modified_network_list_and_its_original(occupied: Machine) -> None:
    occupied.install_network("--netconf", str(occupied.conflist))
    write_list(occupied.conflist, EMBEDDED)
    printed = occupied.uninstall("--names", "calico")
    assert f"{occupied.conflist} kept (modified); 10-calico.conflist.before-svc is the original" in printed
    assert entry_of(occupied.conflist) == EMBEDDED
    assert entry_of(occupied.conf_dir / "10-calico.conflist.before-svc")["datastore_type"] == "kubernetes"


def test_edited_list_of_svc_is_kept(machine: Machine) -> None:
    """Install accepts the list because it has svc's datastore. Uninstall does not restore it because it removes the plugin."""
    network = ("--conf-dir", str(machine.conf_dir), *BARE)
    machine.install(*network)
    path = machine.conf_dir / "10-svc.conflist"
    edited = path.read_text().replace('"svc-ipam"', '"svc-ipam", "assign_ipv6": "true"')
    path.write_text(edited)
    assert "what was there is kept as 10-svc.conflist.replaced-" in machine.install(*network).stdout
    (kept,) = machine.conf_dir.glob("*.replaced-*")
    assert kept.read_text() == edited
    machine.uninstall()
    assert list(machine.conf_dir.iterdir()) == [kept]


def test_files_of_svc_are_recognized_without_an_install_record(machine: Machine) -> None:
    """The executable identifies itself, and the state directory names the installed list."""
    network = ("--netconf", str(machine.folder / "entry.json"))
    (machine.folder / "entry.json").write_text(json.dumps(EMBEDDED))
    machine.install_network(*network)
    for record in machine.bin_dir.glob("*.install"):
        record.unlink()
    done = machine.install_network()
    assert done.returncode == 0, done
    assert {path.name for path in machine.bin_dir.iterdir()} == {
        "calico", "calico.install", "calico-ipam", "calico-ipam.install",
    }  # fmt: skip


# several installations


def test_two_profiles_of_one_agent_have_one_unit(machine: Machine) -> None:
    """The unit may write the logs of both profiles, and is removed with the last one."""
    machine.install_unit()
    unit = machine.units / "svc-agent.service"
    assert "LogsDirectory=calico" not in unit.read_text()
    done = machine.install_unit("--names", "calico")
    assert (done.returncode, list(machine.units.iterdir())) == (0, [unit])
    assert f"note: {unit} is the unit of the agent of these directories: it serves calico too" in done.stderr
    assert "systemctl enable svc-agent.service" in done.stderr
    assert {"LogsDirectory=calico", "LogsDirectory=svc"} <= set(unit.read_text().splitlines())
    for profile in ("default", "calico"):
        assert f"{unit} unchanged" in machine.install_unit("--names", profile).stdout
    assert f"{unit} kept: other names or directories use it" in machine.uninstall("--names", "calico")
    assert f"{unit} removed" in machine.uninstall()
    assert list(machine.units.iterdir()) == []


def test_first_profile_can_be_uninstalled_first(machine: Machine) -> None:
    machine.install_unit()
    machine.install_unit("--names", "calico")
    unit = machine.units / "svc-agent.service"
    assert f"{unit} kept" in machine.uninstall()
    assert f"{unit} removed" in machine.uninstall("--names", "calico")
    assert list(machine.units.iterdir()) == []


def test_wait_is_kept_until_another_is_given(machine: Machine) -> None:
    record = machine.bin_dir / "svc.install"
    machine.install_unit("--wait", "60")
    machine.install_unit()
    assert "\nwait=60\n" in record.read_text()
    machine.install_unit("--wait", "5")
    assert "\nwait=5\n" in record.read_text()
    machine.install_unit("--wait", "0")
    assert "\nwait=" not in record.read_text()


@pytest.mark.parametrize("seconds", ["-1", "601", "x", "1.5", ""])
def test_wait_outside_of_its_range_is_refused(machine: Machine, seconds: str) -> None:
    refused = machine.install("--wait", seconds)
    assert (refused.returncode, "--wait" in refused.stderr) == (2, True)
    assert not machine.bin_dir.exists()


def test_profiles_of_one_agent_share_its_socket(machine: Machine) -> None:
    socket = machine.folder / "elsewhere" / "agent.sock"
    machine.install_unit("--socket", str(socket))
    machine.install_unit("--names", "calico")
    assert f"--socket {socket}" in (machine.units / "svc-agent.service").read_text()
    assert f"socket={socket}\n" in (machine.bin_dir / "calico.install").read_text()
    assert socket.parent.is_dir()


def test_agents_of_different_directories_have_different_units(machine: Machine) -> None:
    machine.install_unit()
    other = Machine(machine.folder / "other")
    other.units = machine.units
    assert other.install_unit("--names", "calico").returncode == 0
    assert sorted(path.name for path in machine.units.iterdir()) == ["calico-agent.service", "svc-agent.service"]


# what cannot be written, and what is left


def test_list_that_a_runtime_would_prefer_is_named(machine: Machine) -> None:
    machine.conf_dir.mkdir()
    for name in ("05-other.conflist", "00-readme.txt", "99-other.conf"):
        (machine.conf_dir / name).touch()
    done = machine.install("--conf-dir", str(machine.conf_dir), *BARE)
    assert done.returncode == 0, done
    assert f"warning: {machine.conf_dir}/05-other.conflist comes before 10-svc.conflist" in done.stderr
    (machine.conf_dir / "05-other.conflist").unlink()
    assert "comes before" not in machine.install("--conf-dir", str(machine.conf_dir), *BARE).stderr


@pytest.mark.root
@pytest.mark.parametrize("how", ["ro", "size=4k"])
def test_directory_that_takes_no_list_is_named_and_the_rest_undone(machine: Machine, how: str) -> None:
    machine.conf_dir.mkdir()
    run("mount", "-t", "tmpfs", "-o", how, "tmpfs", str(machine.conf_dir))
    try:
        if how != "ro":
            with suppress(OSError):
                (machine.conf_dir / "other").write_bytes(b"x" * 8192)
        done = machine.install("--conf-dir", str(machine.conf_dir), *BARE)
    finally:
        run("umount", str(machine.conf_dir))
    assert done.returncode == 1
    assert f"cannot install '{machine.conf_dir}/10-svc.conflist': " in done.stderr
    assert "or choose another --conf-dir" in done.stderr
    assert [path.name for path in machine.folder.iterdir()] == ["net.d"]


@pytest.mark.root
def test_read_only_plugin_directory_is_named_unless_nothing_has_to_be_written(machine: Machine) -> None:
    """A node may have a system that is read-only, and executables that came with it."""
    machine.bin_dir.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", str(machine.bin_dir))
    try:
        run("mount", "-o", "remount,ro", str(machine.bin_dir))
        refused = machine.install()
        assert refused.returncode == 1
        assert (
            f"cannot install '{machine.bin_dir}/svc.install': Read-only file system: have {machine.bin_dir}" in refused.stderr
        )
        assert "or choose another --bin-dir" in refused.stderr
        assert [path.name for path in machine.folder.iterdir()] == ["bin"]
        run("mount", "-o", "remount,rw", str(machine.bin_dir))
        assert machine.install().returncode == 0
        before = machine.files()
        run("mount", "-o", "remount,ro", str(machine.bin_dir))
        repeated = machine.install()
        assert (repeated.returncode, repeated.stderr) == (0, "")
        assert "svc unchanged\n" in repeated.stdout
        other = machine.install("--wait", "7")
        assert (other.returncode, "Read-only file system" in other.stderr) == (1, True)
        assert machine.files() == before
    finally:
        run("umount", str(machine.bin_dir))


def test_state_directory_that_takes_no_record_is_named_and_all_is_undone(machine: Machine) -> None:
    (machine.folder / "state/installed.json/below").mkdir(parents=True)
    done = machine.install()
    assert (done.returncode, "--state-dir" in done.stderr or "record" in done.stderr) == (1, True), done
    assert [path.name for path in machine.folder.iterdir()] == ["state"]


def test_last_uninstall_removes_the_record_of_the_state_directory(machine: Machine) -> None:
    machine.install()
    machine.install("--names", "calico")
    record = machine.folder / "state/installed.json"
    draft = record.with_name(".installed.json.01234567")
    draft.touch()
    os.utime(draft, (1.0, 1.0))
    assert str(record) not in machine.uninstall("--names", "calico")
    assert (record.exists(), draft.exists()) == (True, False)
    assert f"{record} removed\n" in machine.uninstall()
    assert list(record.parent.iterdir()) == []


def test_uninstall_tells_of_dels_that_wait(machine: Machine) -> None:
    machine.install()
    (machine.folder / "state/spool").mkdir(mode=0o700)
    (machine.folder / "state/spool" / ("0" * 16)).touch()
    done = machine.run("uninstall", "--bin-dir", str(machine.bin_dir))
    assert done.returncode == 0, done
    assert f"warning: 1 DEL waits in {machine.folder}/state/spool: an agent" in done.stderr


# options


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (("--netconf", "net.json"), "--netconf needs --conf-dir"),
        (("--cni-version", "1.0.0"), "--cni-version needs --conf-dir"),
        (("--without", "portmap"), "--without needs --conf-dir"),
        (("--datastore", "orch"), "--datastore orch needs --conf-dir"),
        (("--host-conf-dir", "/etc"), "--host-conf-dir needs --conf-dir"),
        (("--conf-dir", "net.d", "--service-account", "/a"), "--service-account needs --datastore orch"),
        (("--unit-dir", "units"), "--unit-dir needs --systemd"),
    ],
)
def test_option_without_an_effect_is_refused(machine: Machine, options: tuple[str, ...], needed: str) -> None:
    done = machine.install(*options)
    assert (done.returncode, needed in done.stderr) == (2, True), done
    assert machine.files() == {}


@pytest.mark.parametrize("endpoints", ["http://user:secret@10.0.0.1:2379", "https://10.0.0.1:2379,10.0.0.2:2379"])
def test_endpoints_that_no_add_could_use_are_refused(machine: Machine, endpoints: str) -> None:
    network = machine.folder / "entry.json"
    network.write_text(json.dumps(netconf(datastore_type="etcdv3", etcd_endpoints=endpoints)))
    done = machine.install("--conf-dir", str(machine.conf_dir), *BARE, "--netconf", str(network))
    assert done.returncode == 1
    assert "etcd_endpoints = " in done.stderr
    assert "secret" not in done.stderr
    assert list(machine.folder.iterdir()) == [network]


@pytest.mark.parametrize("option", ["--bin-dir", "--conf-dir", "--unit-dir"])
def test_error_names_a_file_in_place_of_a_directory(machine: Machine, option: str) -> None:
    (machine.folder / "file").touch()
    given = {"--bin-dir": "b", "--conf-dir": "c", "--unit-dir": "u"} | {option: "file/below"}
    done = machine.run(
        "install", "--systemd", *BARE, *(word for name, path in given.items() for word in (name, str(machine.folder / path)))
    )
    assert done.returncode == 1
    where = machine.folder / "file"
    assert f"{option} '{where}/below' is not a directory: '{where}' is another kind of file: name a directory" in done.stderr
    assert list(machine.folder.iterdir()) == [where]


def test_error_names_a_file_in_place_of_the_state_directory(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    done = Machine(tmp_path).install()
    assert (done.returncode, f"--state-dir '{tmp_path}/state' is not a directory" in done.stderr) == (1, True), done
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["default", "svc"])
def test_default_profile_has_two_names(machine: Machine, name: str) -> None:
    """One is the name of the profile. The other is that of the plugin, which the help text mentions."""
    assert machine.install("--names", name).returncode == 0
    assert "profile=" not in (machine.bin_dir / "svc.install").read_text()
    machine.uninstall("--names", name)
    assert "[default: the installed one, else svc]" in " ".join(machine.run("--help").stdout.split())


# kills


class KilledInstallation:
    """Installations of one machine that are killed at a step, on a machine as it was before."""

    def __init__(self, folder: Path, *, is_occupied: bool) -> None:
        self._netconf = folder / "netconf"
        self._netconf.write_text(json.dumps(EMBEDDED))
        self._is_occupied = is_occupied
        self.machine = Machine(folder / "machine")
        self.reset()
        self.before = self.machine.files()
        assert self.install().returncode == 0
        self.complete = self.machine.files()

    def reset(self) -> None:
        shutil.rmtree(self.machine.folder, ignore_errors=True)
        self.machine.folder.mkdir()
        if self._is_occupied:
            occupy(self.machine)

    def install(self, *prefix: str) -> subprocess.CompletedProcess[str]:
        return self.machine.install_network("--netconf", str(self._netconf), prefix=prefix)

    def is_killed(self, step: str, number: int) -> bool:
        """Kill a new installation when it begins a step for this time. Return whether it came so far."""
        self.reset()
        inject = f"inject={step}:signal=KILL:when={number}"
        done = self.install("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={step}", "-e", inject)
        assert done.returncode in (0, -signal.SIGKILL), done
        return done.returncode != 0

    def files(self) -> Files:
        """Return all files but drafts, which begin with a dot, and which later commands remove some time."""
        return {name: file for name, file in self.machine.files().items() if not Path(name).name.startswith(".")}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to end svcctl at a step")
@pytest.mark.parametrize("step", ["mkdir", "fsync", "linkat", "rename"])
@pytest.mark.parametrize("is_occupied", [False, True], ids=["new", "of another deployment"])
def test_next_installation_completes_what_a_kill_has_interrupted(tmp_path: Path, is_occupied: bool, step: str) -> None:
    """Every file is the old or the new one at each moment, and a new network list comes after all executables."""
    case = KilledInstallation(tmp_path, is_occupied=is_occupied)
    before, complete = case.before, case.complete
    conflist = str(case.machine.conflist.relative_to(case.machine.folder))
    kills = 0
    while case.is_killed(step, kills + 1):
        kills += 1
        found = case.files()
        assert all(file in (before.get(name), complete.get(name)) for name, file in found.items())
        assert before.keys() <= found.keys()
        assert found.get(conflist) != complete[conflist] or found == complete
        assert case.install().returncode == 0
        assert case.files() == complete
        case.machine.uninstall("--names", "calico")
        assert case.files() == before
    assert (kills > 0) == (step != "linkat" or is_occupied)
