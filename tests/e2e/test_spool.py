"""DELs that the executable spools while no agent runs: the next agent carries them out. No Python runs in place of an agent."""

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import kill_point
from harness.netns import run
from harness.node import Node, agent_with
from harness.pod import Pod, refused
from harness.polling import wait_until
from harness.scrape import restart, scrape
from harness.state import audit, disagreements, edit_journal, pod_links, remains
from svc.agent import spool
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_request
from svc.cni.spool_file import FILE_LIMIT, MAX_REFUSED, NAME, REFUSED, file_name, pack, read

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

OTHER_BOOT = "00000000-1111-2222-3333-444444444444"
AGENT = "svc.agent.main"
QUICK_RETRIES = agent_with({f"{spool.__name__}.RETRY_SECONDS": 0.1, f"{spool.__name__}.MAX_RETRY_SECONDS": 0.1})
FAILING_AGENT = """
import svc.agent.main, svc.cni.verbs, svc.model.errors

def fail(invocation):
    raise svc.model.errors.CallerError("a certificate is missing")

svc.cni.verbs.HANDLERS["DEL"] = fail
raise SystemExit(svc.agent.main.main())
"""
STEPS = {
    "read": "svc.agent.spool_directory:SpoolDirectory.read",
    "carry out": "svc.agent.spool:Spool._carry_out",
    "unwire": "svc.attach.teardown:unwire",
    "release": "svc.attach.teardown:release_resources",
    "forget": "svc.attach.journal:Journal.remove",
    "remove": "svc.agent.spool_directory:SpoolDirectory.remove",
}


@pytest.fixture
def node(node: Node) -> Node:
    """A node whose executables wait for an agent, and find no Python."""
    wait_for_agents(node)
    return node


def wait_for_agents(node: Node, seconds: int = 60) -> None:
    arguments = ("--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--wait", str(seconds))
    node.prepare("install", *arguments)
    for record in node.bin_dir.glob("*.install"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join("python=/nonexistent\n" if line.startswith("python=") else line for line in lines))


def files(node: Node) -> list[Path]:
    folder = node.state_dir / "spool"
    return [path for path in folder.iterdir() if NAME.fullmatch(path.name)] if folder.exists() else []


def write_file(node: Node, data: bytes, number: int | None = None) -> Path:
    """Write a file under the name that its content requires, or under a number."""
    name = file_name(read(data).call) if number is None else f"{number:016x}"
    path = node.state_dir / "spool" / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def request(pod: Pod, **environment: str) -> bytes:
    variables = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": pod.container, "CNI_IFNAME": pod.ifname, **environment}
    return pack_request(CallInput("svc", variables, json.dumps(pod.config).encode()))


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def end_agent(node: Node, how: str) -> None:
    if how == "kill":
        node.kill_agent()
    else:
        assert node.stop_agent() == 0


def log_of(node: Node) -> str:
    return node.log.read_text()


# the gap


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_del_without_an_agent_is_done_by_the_next_one(own_pods: MakePod, node: Node, how: str) -> None:
    pod, other = own_pods(), own_pods()
    pod.add()
    other.add()
    end_agent(node, how)
    began = time.monotonic()
    pod.delete()
    assert time.monotonic() - began < 3.0
    assert len(files(node)) == 1
    assert pod.host_name in pod_links(node)
    node.start_agent()
    wait_until(lambda: not files(node))
    assert list(audit(node).allocations) == other.addresses
    assert list(pod_links(node)) == [other.host_name]
    assert disagreements(node) == []
    assert other.check().status == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_add_waits_for_the_next_agent(own_pods: MakePod, node: Node, how: str) -> None:
    pod = own_pods()
    end_agent(node, how)
    calling = pod.begin("ADD")
    time.sleep(3.0)
    assert not calling.is_over
    node.start_agent(recovered=False)
    called = calling.result()
    assert called.status == 0, called
    assert len(called.output["ips"]) == 1
    pod.delete()
    assert remains(node) == []


def test_full_node_without_an_agent_can_be_emptied(own_pods: MakePod, node: Node) -> None:
    """Its pods can be removed, and the agent then has addresses for the next ones."""
    pods = [own_pods() for _ in range(8)]
    for pod in pods:
        pod.add()
    end_agent(node, "kill")
    for calling in [pod.begin("DEL") for pod in pods]:
        assert calling.result().status == 0
    assert len(files(node)) == len(pods)
    node.start_agent()
    wait_until(lambda: not files(node))
    assert remains(node) == []


def test_two_dels_of_one_container(own_pods: MakePod, node: Node) -> None:
    """A repeated one replaces its file, and the other interface has a file of its own."""
    first = own_pods(container="c1")
    second = first.copy(ifname="eth1")
    first.add()
    second.add()
    end_agent(node, "stop")
    first.delete()
    first.delete()
    second.delete()
    assert len(files(node)) == 2
    node.start_agent()
    wait_until(lambda: not files(node))
    assert remains(node) == []


def test_del_of_an_unknown_container_leaves_no_file(own_pods: MakePod, node: Node) -> None:
    end_agent(node, "stop")
    own_pods().delete()
    node.start_agent()
    wait_until(lambda: not files(node))


def test_del_that_a_stopped_agent_does_not_accept_is_spooled(own_pods: MakePod, node: Node) -> None:
    """When it goes on, it finds the DEL on its socket and in the spool, and then an ADD."""
    pod = own_pods()
    pod.add()
    os.kill(node.agent_pid, signal.SIGSTOP)
    try:
        pod.delete()
        assert len(files(node)) == 1
        adding = pod.begin("ADD")
    finally:
        os.kill(node.agent_pid, signal.SIGCONT)
    added = adding.result()
    assert added.status == 0, added
    pod.result = added.output
    wait_until(lambda: not files(node))
    assert pod.check().status == 0
    assert list(audit(node).allocations) == pod.addresses
    pod.delete()
    assert remains(node) == []


# an ADD after the DEL


@pytest.mark.parametrize("recovered", [True, False], ids=["later", "at once"])
def test_add_after_a_spooled_del_is_not_undone(own_pods: MakePod, node: Node, recovered: bool) -> None:
    """The ADD waits for the DEL of its container."""
    pod = own_pods()
    pod.add()
    end_agent(node, "kill")
    pod.delete()
    adding = None if recovered else pod.begin("ADD")
    node.start_agent()
    called = adding.result() if adding else pod.call("ADD")
    assert called.status == 0, called
    pod.result = called.output
    wait_until(lambda: not files(node))
    assert pod.check().status == 0
    assert list(audit(node).allocations) == pod.addresses
    assert disagreements(node) == []
    pod.delete()
    assert remains(node) == []


def test_add_sees_a_del_that_was_just_spooled(own_pods: MakePod, node: Node) -> None:
    """The agent looks into the spool before an ADD. It need not have looked since the DEL."""
    node.stop_agent()
    node.start_agent(*agent_with({f"{spool.__name__}.LOOK_SECONDS": 3600.0}))
    pod = own_pods()
    for _ in range(5):
        pod.add()
        write_file(node, pack(request(pod), boot_id(), since_boot()))
        pod.add()
        assert files(node) == []
        assert pod.check().status == 0
    assert log_of(node).count("is done") == 5
    pod.delete()


def test_file_older_than_its_attachment_is_dropped(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    before = since_boot()
    pod.add()
    write_file(node, pack(request(pod), boot_id(), before))
    wait_until(lambda: not files(node))
    assert "is dropped: the attachment was made after it" in log_of(node)
    assert pod.check().status == 0
    pod.delete()


def test_del_that_is_spooled_while_an_agent_runs_is_done(own_pods: MakePod, node: Node) -> None:
    """Such as in the moment of its start."""
    pod = own_pods()
    pod.add()
    write_file(node, pack(request(pod), boot_id(), since_boot()))
    wait_until(lambda: not files(node))
    assert remains(node) == []


# another boot


def test_file_of_another_boot_does_not_apply_to_this_boot(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    write_file(node, pack(request(pod), OTHER_BOOT, since_boot() + 10**15))
    wait_until(lambda: not files(node))
    assert pod.check().status == 0
    pod.delete()


@pytest.mark.parametrize("file_of_this_boot", [False, True])
def test_attachment_of_an_earlier_boot_is_removed(own_pods: MakePod, node: Node, file_of_this_boot: bool) -> None:
    pod = own_pods()
    pod.add()
    end_agent(node, "stop")
    (record,) = audit(node).records
    record.boot_id = OTHER_BOOT
    edit_journal(node, record)
    write_file(node, pack(request(pod), boot_id() if file_of_this_boot else OTHER_BOOT, 1))
    node.start_agent()
    wait_until(lambda: not files(node))
    assert audit(node).entries() == []


# failures


def test_failed_del_is_retried_and_its_add_is_refused(own_pods: MakePod, node: Node) -> None:
    """Calls of other containers go on."""
    pod, other = own_pods(), own_pods()
    pod.add()
    end_agent(node, "stop")
    pod.delete()
    node.svcctl("clusterinfo", "lock")
    node.start_agent(*QUICK_RETRIES)
    wait_until(lambda: "has failed and will be retried" in log_of(node))
    refused(pod, 11, "waits in the spool", "locked", "repeat the call later")
    refused(other, 105, "locked")
    assert len(files(node)) == 1
    node.svcctl("clusterinfo", "unlock")
    wait_until(lambda: not files(node))
    pod.add()
    other.add()
    assert [each.check().status for each in (pod, other)] == [0, 0]
    pod.delete()
    other.delete()
    assert remains(node) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_agent_leaves_the_del_to_the_next_one(own_pods: MakePod, node: Node, step: str, when: str) -> None:
    pods = [own_pods() for _ in range(3)]
    for pod in pods:
        pod.add()
    end_agent(node, "kill")
    for calling in [pod.begin("DEL") for pod in pods]:
        assert calling.result().status == 0
    program = (sys.executable, kill_point.__file__, STEPS[step], when, AGENT)
    try:
        node.start_agent(*program)
    except RuntimeError:  # it was killed before it served
        assert not node.has_agent
    else:
        assert node.wait_agent() == -signal.SIGKILL
    node.start_agent()
    wait_until(lambda: not files(node))
    assert remains(node) == []
    pods[0].add()
    pods[0].delete()


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        pytest.skip("needs a file system with immutable files")
    try:
        yield
    finally:
        run("chattr", "-i", str(path))


def write_bad_files(node: Node, good: bytes) -> dict[str, str]:
    """Write files that cannot be used. Return the reasons by their names."""
    wrong = bytearray(good)
    wrong[-1] ^= 1
    reasons = dict[str, str]()

    def bad(reason: str, data: bytes = good) -> Path:
        path = write_file(node, data, 0x100 + len(reasons))
        reasons[path.name] = reason
        return path

    bad("its size or its checksum is wrong", bytes(wrong))
    bad("its size or its checksum is wrong", good[:-1])
    bad("it is not a file of the spool, or it is cut", b"")
    bad("it is not a file of the spool, or it is cut", b"\0" * 5000)
    bad("its request is not the DEL of a container", pack(good[64:].replace(b"=DEL", b"=ADD"), OTHER_BOOT, 1))
    bad("its request is not complete", pack(good[64:-1], OTHER_BOOT, 1))
    bad("frame starts with", pack(b"nonsense", OTHER_BOOT, 1))
    bad("its name is not that of its DEL")
    os.truncate(bad(f"it has more than {FILE_LIMIT} bytes"), FILE_LIMIT + 1)
    os.chown(bad("other users have, or had, access to it"), 65534, 65534)
    bad("other users have, or had, access to it").chmod(0o640)
    link = bad("it is a symbolic link")
    link.rename(node.directory / "elsewhere")
    link.symlink_to(node.directory / "elsewhere")
    hard = bad("it is not a regular file with one name")
    (node.directory / "hard").hardlink_to(hard)
    pipe = bad("it is not a regular file with one name")
    pipe.unlink()
    os.mkfifo(pipe, 0o600)
    folder = bad("it is not a regular file with one name")
    folder.unlink()
    folder.mkdir(0o700)
    return reasons


def test_unusable_files_are_set_aside_and_block_no_other(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    end_agent(node, "stop")
    pod.delete()
    good = files(node)[0].read_bytes()
    reasons = write_bad_files(node, good)
    newer = write_file(node, good[:4] + b"\x02" + good[5:], 0x200)
    (newer.parent / "notes.txt").touch()
    draft, stale = (newer.parent / f".{number:016x}" for number in (1, 2))
    draft.touch()
    stale.touch()
    os.utime(stale, (1.0, 1.0))
    node.start_agent()
    wait_until(lambda: files(node) == [newer])
    assert remains(node) == []
    log = log_of(node)
    for name, reason in reasons.items():
        (line,) = (line for line in log.splitlines() if f"/{name} of the spool is not used" in line)
        assert reason in line
        assert f"set aside as {name}.refused" in line
        assert os.path.lexists(newer.parent / f"{name}.refused")
    assert f"{newer} of the spool is not used: a later release of svc has written it" in log
    assert log.count("notes.txt of the spool is not used") == 1
    assert (draft.exists(), stale.exists()) == (True, False)
    assert (node.directory / "elsewhere").read_bytes() == good
    found = json.loads(node.svcctl("status", "-o", "json", check=False).stdout)
    assert found["spool"]["refused"] == len(reasons)
    (text,) = (problem["text"] for problem in found["problems"] if f"{len(reasons)} files of the spool" in problem["text"])
    shown = found["spool"]["refused_files"]
    assert text.endswith(f"cannot be used: {', '.join(shown)} and {len(reasons) - len(shown)} more")
    assert all(Path(path).name.removesuffix(REFUSED) in reasons for path in shown)


@pytest.mark.parametrize(
    ("changes", "stdin", "code"),
    [
        ({}, b"", 6),
        ({}, b"{", 6),
        ({}, b'{"cniVersion": "9.9.9", "name": "n", "type": "svc"}', 1),
        ({}, b'{"cniVersion": "1.0.0", "type": "svc"}', 7),
        ({}, b'{"cniVersion": "1.0.0", "name": "n", "type": "svc", "datastore_type": "other"}', 7),
        ({"CNI_CONTAINERID": "../../x"}, b'{"cniVersion": "1.0.0", "name": "n", "type": "svc"}', 4),
    ],
)
def test_del_that_cannot_succeed_is_set_aside(node: Node, changes: dict[str, str], stdin: bytes, code: int) -> None:
    end_agent(node, "stop")
    environment = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", **changes}
    file = write_file(node, pack(pack_request(CallInput("svc", environment, stdin)), boot_id(), since_boot()))
    node.start_agent(*QUICK_RETRIES)
    refused_file = file.with_name(file.name + REFUSED)
    wait_until(refused_file.exists)
    wait_until(lambda: "set aside" in log_of(node))
    (line,) = (line for line in log_of(node).splitlines() if "cannot succeed, because its input is invalid" in line)
    assert environment["CNI_CONTAINERID"] in line
    assert f"code {code}: " in line
    assert "will be retried" not in log_of(node)
    shown = node.svcctl("status", check=False).stdout
    assert str(refused_file) in "".join(shown.split())  # lines break where the terminal ends


def test_error_of_another_cause_sets_no_del_aside(own_pods: MakePod, node: Node) -> None:
    """It may have the code of an invalid input."""
    pod = own_pods()
    pod.add()
    end_agent(node, "stop")
    pod.delete()
    node.start_agent(sys.executable, "-c", FAILING_AGENT)
    wait_until(lambda: "code 7: a certificate is missing" in log_of(node))
    assert "has failed and will be retried" in log_of(node)
    assert len(files(node)) == 1
    node.stop_agent()
    node.start_agent()
    wait_until(lambda: not files(node))
    assert remains(node) == []


def test_oldest_refused_files_are_removed(node: Node) -> None:
    end_agent(node, "stop")
    folder = node.state_dir / "spool"
    folder.mkdir(mode=0o700)
    for number in range(MAX_REFUSED + 2):
        path = folder / f"{number:016x}{REFUSED}"
        path.touch()
        os.utime(path, (number, number))
    node.start_agent()
    wait_until(lambda: len(list(folder.iterdir())) == MAX_REFUSED)
    assert not (folder / f"{1:016x}{REFUSED}").exists()


def test_draft_that_cannot_be_removed_hinders_no_del(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    end_agent(node, "stop")
    pod.delete()
    draft = node.state_dir / "spool" / f".{1:016x}"
    draft.touch()
    os.utime(draft, (1.0, 1.0))
    with immutable(draft):
        node.start_agent()
        wait_until(lambda: not files(node))
        assert remains(node) == []
        assert f"{draft} of the spool is not used: Operation not permitted: it cannot be removed" in log_of(node)
    wait_until(lambda: not draft.exists())


@pytest.mark.parametrize("what", ["link", "another user's", "file"])
def test_unusable_spool_is_not_used_and_calls_are_served(own_pods: MakePod, node: Node, what: str) -> None:
    pod = own_pods()
    pod.add()
    end_agent(node, "stop")
    folder = node.state_dir / "spool"
    if what == "file":
        folder.touch()
    else:
        write_file(node, pack(request(pod), boot_id(), since_boot()))
        if what == "link":
            folder.rename(node.directory / "elsewhere")
            folder.symlink_to(node.directory / "elsewhere")
        else:
            os.chown(folder, 65534, 65534)
    node.start_agent()
    wait_until(lambda: "the spool cannot be read" in log_of(node))
    time.sleep(2 * spool.LOOK_SECONDS)
    assert log_of(node).count("the spool cannot be read") == 1
    assert pod.check().status == 0
    pod.delete()


def test_open_mode_of_the_spool_is_corrected(own_pods: MakePod, node: Node) -> None:
    pod = own_pods()
    pod.add()
    end_agent(node, "stop")
    write_file(node, pack(request(pod), boot_id(), since_boot()))
    (node.state_dir / "spool").chmod(0o755)
    node.start_agent()
    wait_until(lambda: not files(node))
    assert stat.S_IMODE((node.state_dir / "spool").stat().st_mode) == 0o700


def test_path_of_a_process_is_not_taken_for_the_namespace(own_pods: MakePod, node: Node) -> None:
    """Another process may have the number by now. Here it is in the namespace of the host."""
    pod = own_pods()
    pod.add()
    write_file(node, pack(request(pod, CNI_NETNS=f"/proc/{node.agent_pid}/ns/net"), boot_id(), since_boot()))
    wait_until(lambda: not files(node))
    assert remains(node) == []


# what administrators see


@contextmanager
def spooled(pod: Pod) -> Iterator[Path]:
    """Stop the agent, spool the DEL of a pod with a token, and yield its file."""
    pod.add()
    assert pod.node.stop_agent() == 0
    pod.delete(orch={"api_token": "secret-of-the-netconf"})
    (file,) = files(pod.node)
    assert b"secret-of-the-netconf" in file.read_bytes()
    yield file
    pod.node.start_agent()
    wait_until(lambda: not files(pod.node))


def test_status_tells_how_many_wait_since_when(own_pods: MakePod, node: Node) -> None:
    with spooled(own_pods()) as file:
        os.utime(file, (1.7e9, 1.7e9))
        found = json.loads(node.svcctl("status", "-o", "json", check=False).stdout)
        assert found["spool"] == {"number": 1, "since": 1.7e9, "refused": 0, "refused_files": [], "is_full": False}
        problems = [problem for problem in found["problems"] if "in the spool since" in problem["text"]]
        assert [problem["text"] for problem in problems] == ["1 DEL waits in the spool since 2023-11-14T22:13:20Z"]
        assert "1 DEL waits since 2023-11-14 22:13:20" in node.svcctl("status", check=False).stdout


def test_reports_and_backups_leave_the_spool_out(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    with spooled(own_pods()):
        report = node.svcctl("diag", check=False)
        node.svcctl("store", "backup", str(tmp_path / "copy"))
        node.svcctl("diag", "--bundle", str(tmp_path / "report.tar.gz"), check=False)
        assert "secret-of-the-netconf" not in report.stdout + report.stderr
        assert b"secret-of-the-netconf" not in (tmp_path / "copy").read_bytes()
        with tarfile.open(tmp_path / "report.tar.gz") as archive:
            texts = [archive.extractfile(member) for member in archive.getmembers() if member.isfile()]
            assert len(texts) > 5
            assert all(text is not None and b"secret-of-the-netconf" not in text.read() for text in texts)


def test_gauges_count_spooled_dels(own_pods: MakePod, node: Node) -> None:
    node.svcctl("clusterinfo", "lock")
    write_file(node, pack(request(own_pods()), boot_id(), since_boot()))
    restart(node)
    found = scrape(node)
    node.svcctl("clusterinfo", "unlock")
    assert found["spooled_dels"] == 1
    assert 0 <= found["spooled_del_oldest_seconds"] < 60
