"""svcctl: installation and removal of executables, records and network files."""

import hashlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from svc.admin import installer
from svc.admin.install_records import OtherInstallations, damages, digest_of, recorded_settings, recorded_wait
from svc.admin.installer import InstallSettings
from svc.atomic_file import File, write
from svc.cni.install_record import InstallRecord, read_record
from svc.model.errors import CallerError, PeerError
from svc.names import DEFAULT
from svc.netconf.installed import Installed, add_installed
from svc.netconf.names_profiles import load_profile

ELF = b"\x7fELF: CNI plugin, spec versions "
ECHO = 'while read -r line; do echo "$line"; done'


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "built"
    path.write_bytes(ELF)
    return path


def identity(path: Path) -> tuple[int, int, int]:
    """Return the identity of a file and its content, without the time of the last access."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def plan(**changes: Any) -> InstallSettings:
    fields: dict[str, Any] = {"socket": Path("/s"), "python": Path("/p"), "state_dir": Path("/d"), "run_dir": Path("/r")}
    return InstallSettings(**fields | changes)


def test_executables_and_records_are_installed(tmp_path: Path, executable: Path) -> None:
    """The records are installed before the executables that read them."""
    folder = tmp_path / "opt" / "bin"
    done = installer.install(folder, executable, DEFAULT, plan())
    names = ("svc.install", "svc-ipam.install", "svc-ipam", "svc")
    assert done == [(folder / name, "installed") for name in names]
    assert (folder / "svc").read_bytes() == (folder / "svc-ipam").read_bytes() == ELF
    digest = hashlib.sha256(ELF).hexdigest()[:16]
    files = "".join(f"file={digest} {folder / name}\n" for name in ("svc-ipam", "svc"))
    assert (folder / "svc.install").read_text() == "socket=/s\npython=/p\nstate_dir=/d\nrun_dir=/r\n" + files + "end=record\n"
    assert [stat.S_IMODE((folder / name).stat().st_mode) for name in names] == [0o644, 0o644, 0o755, 0o755]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_wait_is_recorded_unless_it_is_0(tmp_path: Path, executable: Path) -> None:
    installer.install(tmp_path, executable, DEFAULT, plan(wait=60))
    assert "\nrun_dir=/r\nwait=60\nfile=" in (tmp_path / "svc.install").read_text()
    assert recorded_wait(tmp_path, DEFAULT) == 60
    installer.install(tmp_path, executable, DEFAULT, plan())
    assert "\nwait=" not in (tmp_path / "svc.install").read_text()
    assert recorded_wait(tmp_path, DEFAULT) == 0


@pytest.mark.parametrize(("text", "seconds"), [("", 0), ("x", 0), ("-1", 0), ("9999", 600), ("7", 7)])
def test_damaged_wait_is_corrected(tmp_path: Path, text: str, seconds: int) -> None:
    (tmp_path / "svc.install").write_text(f"socket=/s\nwait={text}\nend=record\n")
    assert recorded_wait(tmp_path, DEFAULT) == seconds


def test_unchanged_files_are_not_written(tmp_path: Path, executable: Path) -> None:
    """A runtime may be executing them. A new file replaces each file that differs."""
    installer.install(tmp_path / "bin", executable, DEFAULT, plan())
    before = identity(tmp_path / "bin" / "svc")
    (tmp_path / "bin" / "svc-ipam").chmod(0o700)
    done = installer.install(tmp_path / "bin", executable, DEFAULT, plan(socket=Path("/t")))
    assert [outcome for _, outcome in done] == ["installed", "installed", "installed", "unchanged"]
    assert identity(tmp_path / "bin" / "svc") == before
    assert stat.S_IMODE((tmp_path / "bin" / "svc-ipam").stat().st_mode) == 0o755


def test_running_executable_can_be_replaced(tmp_path: Path) -> None:
    """The running process keeps its file."""
    target = tmp_path / "svc"
    write(File(target, Path("/bin/sh").read_bytes(), 0o755))  # `cat` may be one program for all of coreutils
    with subprocess.Popen([target, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        running.stdin.write(b"x\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"x\n"
        assert write(File(target, ELF, 0o755))
        assert running.communicate(b"y\n")[0] == b"y\n"
    assert target.read_bytes() == ELF


def test_readers_see_the_old_or_the_new_file(tmp_path: Path) -> None:
    """A reader never sees half of a file."""
    target, contents = tmp_path / "svc", [b"a" * 100_000, b"b" * 200_000]
    write(File(target, contents[0], 0o755))
    done = threading.Event()

    def replace() -> None:
        for number in range(50):
            write(File(target, contents[number % 2], 0o755))
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    while not done.is_set():
        assert target.read_bytes() in contents
    writer.join()
    assert list(tmp_path.iterdir()) == [target]


def test_record_has_the_profile(tmp_path: Path, executable: Path) -> None:
    """Executables and records have the names of the profile, so that several profiles can be installed."""
    names = load_profile("calico")
    installer.install(tmp_path, executable, DEFAULT, plan())
    installer.install(tmp_path, executable, names, plan(profile="calico"))
    assert read_record(str(tmp_path / "svc.install"), DEFAULT).profile == ""
    assert read_record(str(tmp_path / "calico.install"), DEFAULT).profile == "calico"
    assert read_record(str(tmp_path / "calico-ipam.install"), DEFAULT) == InstallRecord(Path("/d"), Path("/s"), "calico")


def test_records_of_earlier_releases_mean_the_default_profile(tmp_path: Path) -> None:
    """These records have no last line."""
    text = "socket=/s\npython=/p\nstate_dir=/d\nrun_dir=/r\nfile=0123456789abcdef /opt/cni/bin/"
    (tmp_path / "svc.install").write_text(f"{text}svc\n")
    assert read_record(str(tmp_path / "svc.install"), DEFAULT) == InstallRecord(Path("/d"), Path("/s"), "")
    (tmp_path / "svc.install").write_text("socket=/s\npython=/p\nstate_dir=/d\nrun_dir=/r\n")


@pytest.mark.parametrize("text", ["", "socket=/s\n", "socket=/s\npython=/p\nstate_dir=/d\nrun_dir=/r\nend=record\n"])
def test_uninstall_says_that_a_record_is_damaged(tmp_path: Path, executable: Path, text: str) -> None:
    """A repeated installation mends it."""
    with pytest.raises(CallerError, match="nothing is installed as 'svc'"):
        installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))
    installer.install(tmp_path / "bin", executable, DEFAULT, plan())
    (tmp_path / "bin/svc.install").write_text(text)
    with pytest.raises(CallerError, match=r"svc.install' is damaged: .* repeat `svcctl install`"):
        installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))
    installer.install(tmp_path / "bin", executable, DEFAULT, plan())
    installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))
    assert list((tmp_path / "bin").iterdir()) == []


def test_every_cut_of_a_record_with_wait_is_refused_and_repaired(tmp_path: Path, executable: Path) -> None:
    """No earlier build has written such a record. The IPAM plugin's record, which is whole, still has the settings."""
    settings = InstallSettings(Path("/s"), Path("/p"), tmp_path / "state", Path("/r"), wait=60)
    network = [File(tmp_path / "token", b"x", 0o600, renewed=True)]
    installer.install(tmp_path / "bin", executable, DEFAULT, settings, network)
    add_installed(tmp_path / "state", Installed("", str(tmp_path / "bin"), (str(tmp_path / "bin/svc"),)))
    record = tmp_path / "bin/svc.install"
    text = record.read_bytes()
    for size in range(len(text) - 1):
        record.write_bytes(text[:size])
        with pytest.raises(PeerError, match="it is damaged"):
            read_record(str(record), DEFAULT)
    for each in (record, tmp_path / "bin/svc-ipam.install"):
        each.write_bytes(text[: text.index(b"file=")])
    changed = [File(tmp_path / "token", b"y", 0o600, renewed=True)]
    outcomes = dict(installer.install(tmp_path / "bin", executable, DEFAULT, settings, changed))
    assert ".replaced-" in outcomes[tmp_path / "token"]  # not an original, which `uninstall` would put back
    assert record.read_bytes() == text
    record.write_bytes(text[: len(text) // 2])
    (damage,) = damages(tmp_path / "state")
    assert damage.msg == f"cannot use {record}: it is damaged"
    assert "repeat `svcctl install` with the same options; in a cluster, delete the pod" in damage.details
    assert recorded_settings(tmp_path / "bin", DEFAULT)["wait"] == "60"
    with pytest.raises(CallerError, match=r"svc.install' is damaged"):
        installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))
    installer.install(tmp_path / "bin", executable, DEFAULT, settings)
    assert record.read_bytes() == text
    assert damages(tmp_path / "state") == []


@pytest.mark.parametrize("profile", ["", "calico"])
def test_truncated_record_is_refused(tmp_path: Path, executable: Path, profile: str) -> None:
    names = load_profile(profile)
    installer.install(tmp_path, executable, names, plan(profile=profile))
    record = tmp_path / f"{names.plugin}.install"
    text = record.read_bytes()
    minimum = text.index(b"file=")  # the fields before it are required
    for size in range(1, minimum + len("file=")):
        record.write_bytes(text[:size])
        with pytest.raises(PeerError, match="it is damaged"):
            read_record(str(record), DEFAULT)


def test_uninstall_removes_what_was_installed(tmp_path: Path, executable: Path) -> None:
    """The network list is removed first, so that no runtime calls a missing executable. Other files stay."""
    names = load_profile("calico")
    network = [File(tmp_path / "net.d" / name, b"x", 0o600) for name in ("token", "list")]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ptp").touch()
    installer.install(tmp_path / "bin", executable, DEFAULT, plan(), network)
    installer.install(tmp_path / "bin", executable, names, plan(profile="calico"))
    done = installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))
    assert [path.name for path, _ in done] == ["list", "token", "svc", "svc-ipam", "svc-ipam.install", "svc.install"]
    assert {outcome for _, outcome in done} == {"removed"}
    remaining = sorted(path.name for path in (tmp_path / "bin").iterdir())
    assert remaining == ["calico", "calico-ipam", "calico-ipam.install", "calico.install", "ptp"]
    assert list((tmp_path / "net.d").iterdir()) == []


def test_uninstall_keeps_modified_files(tmp_path: Path, executable: Path) -> None:
    """A user or another installer may have modified them. A token is removed, because it changes regularly."""
    network = [File(tmp_path / "token", b"x", 0o600, renewed=True), File(tmp_path / "list", b"x", 0o600)]
    installer.install(tmp_path / "bin", executable, DEFAULT, plan(), network)
    (tmp_path / "bin" / "svc").write_bytes(b"another program")
    (tmp_path / "token").write_bytes(b"y")
    (tmp_path / "list").unlink()
    outcomes = {path.name: outcome for path, outcome in installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))}
    assert outcomes["svc"] == "kept (modified)"
    assert outcomes["list"] == "already absent"
    assert outcomes["token"] == outcomes["svc-ipam"] == outcomes["svc.install"] == "removed"
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["svc"]


def test_later_installation_keeps_the_record_of_earlier_files(tmp_path: Path, executable: Path) -> None:
    """The second install renews only the executables. Uninstall still removes the network list of the first."""
    installer.install(tmp_path / "bin", executable, DEFAULT, plan(), [File(tmp_path / "list", b"x", 0o600)])
    installer.install(tmp_path / "bin", executable, DEFAULT, plan())
    installer.uninstall(tmp_path / "bin", DEFAULT, OtherInstallations([]))
    assert not (tmp_path / "list").exists()


def test_failed_installation_leaves_no_files(tmp_path: Path, executable: Path) -> None:
    """The name of an executable is that of a directory."""
    (tmp_path / "bin" / "svc" / "full").mkdir(parents=True)
    with pytest.raises(PeerError, match=r"cannot install '.*/bin/svc': Is a directory: move it away, or .* --bin-dir"):
        installer.install(tmp_path / "bin", executable, DEFAULT, plan())
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["svc"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"socket": Path("/" + "x" * 107)}, "longer than 107 bytes"),
        ({"state_dir": Path("/a\nb")}, "has a line break"),
        ({"state_dir": Path("/" + "x" * 5000)}, "over 4096"),
        ({"profile": "/a\nb"}, "has a line break"),
    ],
    ids=["socket", "line break", "record", "profile"],
)
def test_unreadable_records_are_refused(tmp_path: Path, executable: Path, changes: dict[str, Any], message: str) -> None:
    """No file is installed."""
    with pytest.raises(CallerError, match=message):
        installer.install(tmp_path / "bin", executable, DEFAULT, plan(**changes))
    assert not (tmp_path / "bin").exists()


def test_only_executables_of_svc_are_installed(tmp_path: Path) -> None:
    """A script would need an interpreter that the host may not have. Another program would answer each call with success."""
    (tmp_path / "script").write_bytes(b"#!/bin/sh\n" + ELF)
    other = "is not an executable of svc"
    for name, message in (("script", other), ("/bin/true", other), ("missing", "cannot read executable")):
        with pytest.raises(CallerError, match=message):
            installer.install(tmp_path / "bin", tmp_path / name, DEFAULT, plan())
    assert not (tmp_path / "bin").exists()


def test_executable_of_svc_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is next to the interpreter. Otherwise the error names the directories that were searched."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    with pytest.raises(CallerError, match="no executable 'svc' in") as caught:
        installer.find_executable()
    assert str(tmp_path / "scripts") in caught.value.msg
    (tmp_path / "svc").write_bytes(ELF)
    assert installer.find_executable() == tmp_path / "svc"


OWN, OTHER = (b'{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "%s"}]}' % kind for kind in (b"svc", b"bridge"))


def test_network_list_of_another_program_is_kept_and_put_back(tmp_path: Path, executable: Path) -> None:
    """The copy has another name. A list of svc that a user has edited is kept too."""
    folder, path = tmp_path / "bin", tmp_path / "net.conflist"
    path.write_bytes(OTHER)

    def install(data: bytes) -> str:
        return dict(installer.install(folder, executable, DEFAULT, plan(), [File(path, data, 0o600)]))[path]

    assert install(OWN) == "installed; what was there is kept as net.conflist.before-svc"
    assert install(OWN) == "unchanged"
    edited = OWN.replace(b"net", b"edited")
    path.write_bytes(edited)
    kept = tmp_path / install(OWN).rpartition(" ")[2]
    assert kept.name.startswith("net.conflist.replaced-")
    assert kept.read_bytes() == edited
    done = dict(installer.uninstall(folder, DEFAULT, OtherInstallations(())))
    assert done[path] == "put back: the original"
    assert path.read_bytes() == OTHER


def test_network_list_of_another_deployment_is_not_replaced(tmp_path: Path) -> None:
    """The error has its datastore. A list of svc, or one that this installation has written, is replaced."""
    path, names = tmp_path / "net.conflist", load_profile("calico")
    theirs = b'{"plugins": [{"type": "calico", "datastore_type": "kubernetes"}]}'
    for data, recorded in ((OWN, None), (OTHER, digest_of(OTHER)), (theirs, digest_of(theirs))):
        path.write_bytes(data)
        installer.require_own_list(path, recorded, names)
    for data, text in ((theirs, "datastore 'kubernetes'"), (OTHER, "no datastore that"), (b"[", "no datastore that")):
        path.write_bytes(data)
        with pytest.raises(CallerError, match=f"is of another deployment, with {text}"):
            installer.require_own_list(path, None, names)


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return content, mode and inode of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_ino) for path in files}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("failing", ["list", "finish"])
def test_failed_installation_is_undone(tmp_path: Path, executable: Path, is_new: bool, failing: str) -> None:
    """Files, originals and directories are as they were."""
    folder = tmp_path / "bin"
    lists = [File(tmp_path / "net.d" / name, b"x", 0o600) for name in ("token", "list")]
    if not is_new:
        folder.mkdir()
        (folder / "svc").write_bytes(b"of another program")
        (tmp_path / "net.d").mkdir()
        (tmp_path / "net.d/token").write_bytes(b"y")
    if failing == "list":
        (tmp_path / "net.d/list/below").mkdir(parents=True)
    before, directories = contents(tmp_path), sorted(path for path in tmp_path.rglob("*") if path.is_dir())

    def finish() -> list[installer.Outcome]:
        raise PeerError("the state directory is read-only")

    message = {"list": r"cannot install '.*/net.d/list': Is a directory: move .* another --conf-dir", "finish": "read-only"}
    with pytest.raises(PeerError, match=message[failing]):
        installer.install(folder, executable, DEFAULT, plan(), lists, finish=finish)
    assert contents(tmp_path) == before
    assert sorted(path for path in tmp_path.rglob("*") if path.is_dir()) == directories


def test_what_follows_a_killed_installation_is_the_original(tmp_path: Path, executable: Path) -> None:
    """The first version, which that installation has kept, stays beside."""
    folder, first, second = tmp_path / "bin", b"version 1", b"version 2"
    folder.mkdir()
    (folder / "svc").write_bytes(first)
    (folder / "svc.before-svc").hardlink_to(folder / "svc")
    (folder / "svc.new").write_bytes(second)
    (folder / "svc.new").rename(folder / "svc")
    installer.install(folder, executable, DEFAULT, plan())
    installer.uninstall(folder, DEFAULT, OtherInstallations([]))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "svc": second, f"svc.replaced-{digest_of(first)}": first,
    }  # fmt: skip


def test_what_follows_a_killed_installation_with_a_record_is_the_original(tmp_path: Path, executable: Path) -> None:
    """The record is there before the executables."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "svc").write_bytes(b"version 1")
    installer.install(folder, executable, DEFAULT, plan())
    (folder / "svc").write_bytes(b"version 2")
    installer.install(folder, executable, DEFAULT, plan())
    installer.uninstall(folder, DEFAULT, OtherInstallations([]))
    assert (folder / "svc").read_bytes() == b"version 2"


def test_killed_installation_is_completed(tmp_path: Path, executable: Path) -> None:
    """It has kept the original, and replaced nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "svc").write_bytes(b"version 1")
    (folder / "svc.before-svc").hardlink_to(folder / "svc")
    done = dict(installer.install(folder, executable, DEFAULT, plan()))
    assert done[folder / "svc"] == "installed; what was there is kept as svc.before-svc"
    installer.uninstall(folder, DEFAULT, OtherInstallations([]))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"svc": b"version 1"}


def test_link_that_leads_nowhere_is_put_back(tmp_path: Path, executable: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "svc").symlink_to("/nonexistent/svc")
    done = dict(installer.install(folder, executable, DEFAULT, plan()))
    assert done[folder / "svc"] == "installed; what was there is kept as svc.before-svc"
    assert not (folder / "svc").is_symlink()
    installer.uninstall(folder, DEFAULT, OtherInstallations([]))
    assert [path.readlink() for path in folder.iterdir()] == [Path("/nonexistent/svc")]


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_old_drafts_of_own_files_are_removed(tmp_path: Path, executable: Path, command: str) -> None:
    """A process was killed that wrote them. Another one may be writing a new draft."""
    folder = tmp_path / "bin"
    installer.install(folder, executable, DEFAULT, plan(), [File(tmp_path / "list", b"x", 0o600)])
    old = [folder / ".svc-ipam.01234567", folder / ".svc.install.89abcdef", tmp_path / ".list.00000000"]
    foreign = [folder / ".ptp.01234567", folder / ".svc.0123456", folder / ".svc.01234567.x"]
    for path in (*old, *foreign):
        path.touch()
        os.utime(path, (1.0, 1.0))
    fresh, saved = folder / ".svc.01234567", folder / ".svc.01234567.saved"
    for path in (fresh, saved):
        path.touch()
    os.utime(saved, (1.0, 1.0))  # as the file that it saves
    if command == "install":
        installer.install(folder, executable, DEFAULT, plan(), [File(tmp_path / "list", b"x", 0o600)])
    else:
        installer.uninstall(folder, DEFAULT, OtherInstallations([]))
    assert [path.exists() for path in old] == [False] * 3
    assert all(path.exists() for path in (*foreign, fresh, saved))


def test_uninstall_names_the_file_that_it_cannot_remove(tmp_path: Path, executable: Path) -> None:
    installer.install(tmp_path, executable, DEFAULT, plan())
    (tmp_path / "svc").unlink()
    (tmp_path / "svc").mkdir()
    with pytest.raises(PeerError, match=r"cannot uninstall from '.*': Is a directory: '.*/svc': .* then repeat this"):
        installer.uninstall(tmp_path, DEFAULT, OtherInstallations([]))
