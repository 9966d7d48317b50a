"""The native executable with `wait=` in its record: it waits for an agent, runs no one-shot, and spools a DEL."""

import errno
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.netns import run
from harness.polling import wait_until
from harness.shim import (
    ATTACHMENT,
    NETCONF,
    FakeAgent,
    Handler,
    Shim,
    answering,
    error_of,
    hang,
    version_of,
    write_one_shot,
)
from harness.spool_names import file_name
from svc.agent.stop_mark import leave_mark
from svc.cni import spool_file
from svc.cni.frame import FrameError, pack_alive, pack_handover
from svc.cni.spool_file import MAX_BYTES, MAX_FILES, NAME, REFUSED, pack, read

EXECUTABLE_LIMIT = 24 << 10  # bytes
PAUSE_SECONDS = 0.2  # the longest between two attempts
KEPT = 20 / 1000  # seconds of the fast executable
STRACE = ["strace", "-qq", "-o", "/dev/null"]

traced = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to end or delay the executable at a step")


@pytest.fixture
def waiting(shim: Shim, tmp_path: Path) -> Shim:
    return with_wait(shim, tmp_path)


@pytest.fixture
def hasty(fast_shim: Shim, tmp_path: Path) -> Shim:
    """Its seconds are 20 ms."""
    return with_wait(fast_shim, tmp_path)


def with_wait(shim: Shim, folder: Path, seconds: str = "60") -> Shim:
    """Return the installation with a wait. Its Python would end with status 7."""
    (folder / "state").mkdir(mode=0o700, exist_ok=True)
    python = write_one_shot(folder / "python")
    shim.record(f"socket={shim.socket}\npython={python}\nstate_dir={folder / 'state'}\nwait={seconds}\n")
    return shim


def begin(shim: Shim, verb: str, stdin: bytes = NETCONF, **variables: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [shim.path], env={"CNI_COMMAND": verb, **ATTACHMENT, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    return process


def spool_of(folder: Path) -> Path:
    return folder / "state/spool"


def spooled_files(folder: Path) -> list[Path]:
    return [path for path in spool_of(folder).iterdir() if NAME.fullmatch(path.name)] if spool_of(folder).exists() else []


def test_executable_is_small(executable: Path) -> None:
    if "SVC_SANITIZERS" in os.environ or "SVC_SHIM" in os.environ:
        pytest.skip("another build")
    assert executable.stat().st_size <= EXECUTABLE_LIMIT


# until an agent comes


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "GC", "STATUS", "DEL"])
def test_call_is_served_by_the_agent_that_comes(waiting: Shim, tmp_path: Path, verb: str) -> None:
    calling = begin(waiting, verb)
    time.sleep(0.5)
    assert calling.poll() is None
    with FakeAgent(waiting.socket, answering(0, b"served")) as agent:
        stdout, _ = calling.communicate()
    assert (calling.returncode, stdout) == (0, b"served")
    assert [received.frame.environment["CNI_COMMAND"] for received in agent.received] == [verb]
    assert spooled_files(tmp_path) == []


@pytest.mark.parametrize(
    ("verb", "code", "limit"), [("ADD", 11, "60 s"), ("GC", 11, "60 s"), ("CHECK", 11, "10 s"), ("STATUS", 50, "1 s")]
)
def test_error_after_the_time_names_agent_and_remedy(hasty: Shim, verb: str, code: int, limit: str) -> None:
    """It takes as long as it says, and no one-shot runs."""
    began = time.monotonic()
    error = error_of(hasty.run(verb))
    seconds = float(limit.split()[0]) * KEPT
    assert seconds <= time.monotonic() - began < seconds + 2
    assert (error["code"], error["cniVersion"]) == (code, "1.0.0")
    assert error["msg"] == f"the agent is not running: none accepted the call within {limit}"
    assert error["details"].startswith("start it, or see in its log why it does not start")
    assert str(hasty.socket) in error["details"]


def test_status_tries_for_a_second(waiting: Shim) -> None:
    began = time.monotonic()
    assert error_of(waiting.run("STATUS"))["code"] == 50
    assert 0.9 < time.monotonic() - began < 1.5


def test_version_waits_for_nothing(waiting: Shim) -> None:
    began = time.monotonic()
    assert version_of(waiting.run("VERSION")) == "1.0.0"
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("seconds", ["", "x", "6 0", "-1", "601", "99999999999999999999", "1.5"])
def test_damaged_wait_is_an_error(shim: Shim, tmp_path: Path, seconds: str) -> None:
    error = error_of(with_wait(shim, tmp_path, seconds).run("ADD"))
    assert error["msg"] == f"cannot use {shim.path.parent}/svc.install: it is damaged"


def test_wait_of_zero_means_a_one_shot(shim: Shim, tmp_path: Path) -> None:
    assert with_wait(shim, tmp_path, "0").run("DEL").returncode == 7


def test_mark_of_a_stopped_agent_changes_nothing(waiting: Shim, tmp_path: Path) -> None:
    """A DEL is spooled after 2 s, and an ADD waits longer than the 2.5 s that follow the end of an agent."""
    leave_mark(waiting.socket)
    adding = begin(waiting, "ADD")
    began = time.monotonic()
    assert waiting.run("DEL").returncode == 0
    assert 1.9 < time.monotonic() - began < 2.6
    assert len(spooled_files(tmp_path)) == 1
    time.sleep(1)
    assert adding.poll() is None
    with FakeAgent(waiting.socket, answering(0, b"served")):
        assert adding.communicate()[0] == b"served"


def test_attempts_of_many_executables_are_spread(waiting: Shim) -> None:
    """Between two attempts are 20 to 200 ms. An agent that answers nothing sees when each executable tries."""
    times: dict[int, list[float]] = {}
    guard = threading.Lock()

    def close(agent: FakeAgent, connection: socket.socket) -> None:
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        with guard:
            times.setdefault(pid, []).append(time.monotonic())

    callers = 20
    with FakeAgent(waiting.socket, close):
        processes = [begin(waiting, "ADD") for _ in range(callers)]
        time.sleep(4)
        for process in processes:
            process.kill()
            process.communicate()
    assert len(times) == callers
    gaps = [later - earlier for each in times.values() for earlier, later in pairwise(each[1:])]
    assert min(gaps) > 0.015
    assert sorted(gaps)[len(gaps) // 2] < PAUSE_SECONDS + 0.05
    moments = sorted(moment for each in times.values() for moment in each if moment > min(map(min, times.values())) + 2)
    buckets = {int(moment / 0.02) for moment in moments}
    assert len(buckets) > 50  # of the last 2 s: they do not try in step


def test_call_survives_an_agent_that_is_killed(waiting: Shim) -> None:
    """It closes the connection without an answer. The next agent gets the same request, with signs of life."""
    closed = threading.Event()

    def close(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        closed.set()

    with FakeAgent(waiting.socket, close) as first:
        calling = begin(waiting, "ADD")
        assert closed.wait(10)
        waiting.socket.unlink()
    time.sleep(0.3)
    with FakeAgent(waiting.socket, answering(0, b"by the next agent")) as second:
        assert calling.communicate()[0] == b"by the next agent"
    assert second.received[0].frame == first.received[0].frame
    assert second.received[0].frame.protocol == 2
    assert second.received[0].descriptor == first.received[0].descriptor is not None


def test_handed_over_call_waits_for_the_next_agent(waiting: Shim) -> None:
    """It waits for as long as the record says, not for as long as the first agent said."""

    def hand_over(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        agent.path.unlink()
        connection.sendall(pack_handover(b"77", 0.1))

    with FakeAgent(waiting.socket, hand_over) as first:
        calling = begin(waiting, "ADD")
        wait_until(lambda: len(first.received) == 1)
        time.sleep(1)
        assert calling.poll() is None
    with FakeAgent(waiting.socket, answering(0, b"by the next agent")) as second:
        assert calling.communicate()[0] == b"by the next agent"
    assert second.received[0].frame.continuation == b"77"


def test_agent_without_a_sign_of_life_is_an_error(hasty: Shim) -> None:
    with FakeAgent(hasty.socket, hang):
        assert "the agent does not respond" in error_of(hasty.run("ADD"))["msg"]


def test_agent_that_stops_after_a_sign_of_life_fails_its_del(hasty: Shim, tmp_path: Path) -> None:
    """It has accepted the call."""

    def hang_later(agent: FakeAgent, connection: socket.socket) -> None:
        connection.sendall(pack_alive())
        hang(agent, connection)

    with FakeAgent(hasty.socket, hang_later):
        assert "the agent does not respond" in error_of(hasty.run("DEL"))["msg"]
    assert spooled_files(tmp_path) == []


# the spool


@pytest.mark.parametrize("stdin", [NETCONF, NETCONF.ljust(1 << 20)], ids=["small", "larger than the socket's buffer"])
def test_del_that_a_stopped_agent_does_not_accept_is_spooled(hasty: Shim, tmp_path: Path, stdin: bytes) -> None:
    """The kernel accepts its connection."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(hasty.socket))
        listening.listen()
        result = hasty.run("DEL", stdin)
        assert (result.returncode, result.stdout) == (0, b"")
        assert [read(file.read_bytes()).call.stdin for file in spooled_files(tmp_path)] == [stdin]
        assert "the agent" in error_of(hasty.run("ADD", stdin))["msg"]


def test_del_without_room_in_the_backlog_is_spooled(hasty: Shim, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as other:
        listening.bind(str(hasty.socket))
        listening.listen(0)
        other.connect(str(hasty.socket))
        assert hasty.run("DEL").returncode == 0
        assert len(spooled_files(tmp_path)) == 1


@pytest.mark.parametrize("backlog", [0, 8], ids=["no room in the backlog", "room"])
def test_del_to_a_hung_agent_takes_two_seconds(waiting: Shim, tmp_path: Path, backlog: int) -> None:
    """No agent has accepted it in this time, as if none were there."""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as other:
        listening.bind(str(waiting.socket))
        listening.listen(backlog)
        other.connect(str(waiting.socket))
        began = time.monotonic()
        assert waiting.run("DEL").returncode == 0
        assert 1.9 < time.monotonic() - began < 3.5
        assert len(spooled_files(tmp_path)) == 1


def test_files_that_are_set_aside_do_not_fill_the_spool(hasty: Shim, tmp_path: Path) -> None:
    assert hasty.run("DEL").returncode == 0
    for number in range(MAX_FILES):
        (spool_of(tmp_path) / f"{number:016x}{REFUSED}").touch()
    assert hasty.run("DEL", CNI_CONTAINERID="c2").returncode == 0


def boot_time() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_spooled_del_is_the_request_with_boot_and_time(hasty: Shim, tmp_path: Path) -> None:
    before = boot_time()
    result = hasty.run("DEL", CNI_ARGS="K8S_POD_NAME=web")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    (file,) = spooled_files(tmp_path)
    assert file.name == file_name("", b"net", "c1", "eth0")
    data = file.read_bytes()
    spooled = read(data)
    assert spooled.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert before < spooled.nanoseconds < boot_time()
    with FakeAgent(hasty.socket, answering()) as agent:
        assert hasty.run("DEL", CNI_ARGS="K8S_POD_NAME=web").returncode == 0
    assert agent.received[0].frame == spooled.call
    assert data == pack(data[64:], spooled.boot_id, spooled.nanoseconds)


def test_only_root_has_access(hasty: Shim, tmp_path: Path) -> None:
    assert hasty.run("DEL").returncode == 0
    assert list(spool_of(tmp_path).iterdir()) == spooled_files(tmp_path)
    assert stat.S_IMODE(spool_of(tmp_path).stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in spooled_files(tmp_path)] == [0o600]


def test_repeated_del_replaces_its_file(hasty: Shim, tmp_path: Path) -> None:
    hasty.run("DEL")
    (first,) = spooled_files(tmp_path)
    earlier = read(first.read_bytes()).nanoseconds
    hasty.run("DEL")
    hasty.run("DEL", CNI_IFNAME="eth1")
    hasty.run("DEL", CNI_CONTAINERID="c2")
    hasty.run("DEL", NETCONF.replace(b"net", b"other"))
    assert read(first.read_bytes()).nanoseconds > earlier
    assert len(spooled_files(tmp_path)) == 4


def test_profile_is_part_of_the_name(hasty: Shim, tmp_path: Path) -> None:
    hasty.record(f"socket={hasty.socket}\nstate_dir={tmp_path / 'state'}\nwait=60\nprofile=calico\n")
    hasty.run("DEL")
    assert [file.name for file in spooled_files(tmp_path)] == [file_name("calico", b"net", "c1", "eth0")]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    network=TEXTS,
    before=st.dictionaries(
        st.sampled_from(["a", "nam", "names", "list"]) | TEXTS, VALUES | st.fixed_dictionaries({"name": TEXTS})
    ),
    container=TEXTS,
    indent=st.sampled_from([None, 2]),
)
def test_name_and_content_equal_the_twins(
    hasty: Shim, tmp_path: Path, network: str, before: dict[str, object], container: str, indent: int | None
) -> None:
    """The name is the hash of the network's name in the outermost object, as it is written there."""
    before.pop("name", None)
    netconf = json.dumps({**before, "name": network, "z": {"name": "inner"}}, indent=indent).encode()
    assert hasty.run("DEL", netconf, CNI_CONTAINERID=container).returncode == 0
    (file,) = spooled_files(tmp_path)
    data = file.read_bytes()
    file.unlink()
    assert file.name == file_name("", json.dumps(network)[1:-1].encode(), container, "eth0")
    spooled = read(data)
    assert file.name == spool_file.file_name(spooled.call)
    assert (spooled.call.stdin, spooled.call.environment["CNI_CONTAINERID"]) == (netconf, container)
    assert data == pack(data[64:], spooled.boot_id, spooled.nanoseconds)


@pytest.mark.parametrize(
    "stdin",
    [
        b"",
        b"{",
        b'"',
        b'{"name"',
        b'{"name":',
        b'{"name": "',
        b'{"name": "x\\',
        b"\0" * 9,
        b"[" * 5000,
        b"}" * 9,
        b"\xff" * 99,
        b'{"name": "x\\"y\\\\", "z"',
        b'{"name"\t\n :5, "a": "b"}',
        b'{"name" "name": {"name": "a"}}',
        b'{"a": "name", "name": "\0b"}',
        b'}{{"name": "\xff"',
        b'{"\\\\name": "a", "name": "b',
        b'["name", "a"]',
    ],
)
def test_any_input_is_spooled(hasty: Shim, tmp_path: Path, stdin: bytes) -> None:
    """The agent reads it. The executable must not refuse what it cannot read."""
    assert hasty.run("DEL", stdin).returncode == 0
    (file,) = spooled_files(tmp_path)
    call = read(file.read_bytes()).call
    assert call.stdin == stdin
    assert spool_file.file_name(call) == file.name


def test_name_of_a_file_may_follow_from_bytes_that_are_no_text(hasty: Shim, tmp_path: Path) -> None:
    assert hasty.run("DEL", CNI_CONTAINERID=os.fsdecode(b"\xff\xc3")).returncode == 0
    (file,) = spooled_files(tmp_path)
    assert spool_file.file_name(read(file.read_bytes()).call) == file.name


def test_largest_request_is_spooled(hasty: Shim, tmp_path: Path) -> None:
    stdin = NETCONF.ljust(1 << 20)
    assert hasty.run("DEL", stdin).returncode == 0
    assert [read(file.read_bytes()).call.stdin for file in spooled_files(tmp_path)] == [stdin]


# the last attempt


def spool_slowly(shim: Shim, tmp_path: Path, handle: Handler) -> tuple[FakeAgent, subprocess.CompletedProcess[bytes]]:
    """Let an agent listen as soon as the DEL is in the spool, before the executable goes on."""
    environment = {"CNI_COMMAND": "DEL", **ATTACHMENT}
    command = [*STRACE, "-e", "inject=renameat:delay_exit=500000", str(shim.path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(NETCONF)
        process.stdin.close()
        process.stdin = None
        wait_until(lambda: bool(spooled_files(tmp_path)))
        with FakeAgent(shim.socket, handle) as agent:
            stdout, _ = process.communicate()
    return agent, subprocess.CompletedProcess(command, process.returncode, stdout)


@traced
def test_agent_that_has_started_meantime_does_it(waiting: Shim, tmp_path: Path) -> None:
    """It may have read the spool before. Its success removes the file."""
    agent, result = spool_slowly(waiting, tmp_path, answering(0, b"done"))
    assert (result.returncode, result.stdout) == (0, b"done")
    assert len(agent.received) == 1
    assert spooled_files(tmp_path) == []


@traced
def test_failure_of_the_last_attempt_keeps_the_file(waiting: Shim, tmp_path: Path) -> None:
    _, result = spool_slowly(waiting, tmp_path, answering(1, b"failed"))
    assert (result.returncode, result.stdout) == (1, b"failed")
    assert len(spooled_files(tmp_path)) == 1


def close_early(agent: FakeAgent, connection: socket.socket) -> None:
    agent.receive(connection)


def answer_nonsense(agent: FakeAgent, connection: socket.socket) -> None:
    agent.receive(connection)
    connection.sendall(b"nonsense" * 20)


@traced
@pytest.mark.parametrize("handle", [close_early, answer_nonsense, hang])
def test_agent_without_an_answer_does_not_fail_a_spooled_del(waiting: Shim, tmp_path: Path, handle: Handler) -> None:
    _, result = spool_slowly(waiting, tmp_path, handle)
    assert (result.returncode, result.stdout) == (0, b"")
    assert len(spooled_files(tmp_path)) == 1


# kills and failures


STEPS = [
    "mkdirat",
    "openat:when=6",
    "write:when=1",
    "write:when=2",
    "fsync:when=1",
    "getdents64",
    "renameat",
    "fsync:when=2",
    "exit_group",
]


@traced
@pytest.mark.parametrize("step", STEPS)
def test_kill_leaves_a_whole_file_or_none(hasty: Shim, tmp_path: Path, step: str) -> None:
    """The runtime repeats the DEL, which then succeeds."""
    call, _, when = step.partition(":")
    command = [*STRACE, "-e", f"inject={call}:signal=KILL{':' + when if when else ''}", str(hasty.path)]
    killed = subprocess.run(command, env={"CNI_COMMAND": "DEL", **ATTACHMENT}, input=NETCONF, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    files = spooled_files(tmp_path)
    assert len(files) == (step in ("fsync:when=2", "exit_group"))
    assert [read(file.read_bytes()).call.stdin for file in files] == [NETCONF] * len(files)
    assert hasty.run("DEL").returncode == 0
    assert [read(file.read_bytes()).call.stdin for file in spooled_files(tmp_path)] == [NETCONF]


@traced
@pytest.mark.parametrize(
    "step",
    ["mkdirat", "openat:when=6+", "write:when=1", "write:when=2", "fsync:when=1", "getdents64", "renameat", "fsync:when=2"],
)
@pytest.mark.parametrize("name", ["ENOSPC", "EROFS"])
def test_refused_step_fails_the_del(hasty: Shim, tmp_path: Path, step: str, name: str) -> None:
    """Nothing but a file that is there already stays."""
    call, _, when = step.partition(":")
    command = [*STRACE, "-e", f"inject={call}:error={name}{':' + when if when else ''}", str(hasty.path)]
    environment = {"CNI_COMMAND": "DEL", **ATTACHMENT}
    error = error_of(subprocess.run(command, env=environment, input=NETCONF, capture_output=True, check=False))
    assert error["code"] == 5
    assert error["msg"].startswith(f"no agent has accepted the DEL, and it cannot be left in {spool_of(tmp_path)}: ")
    assert os.strerror(getattr(errno, name)) in error["msg"]
    assert str(hasty.socket) in error["details"]
    left = list(spool_of(tmp_path).iterdir()) if spool_of(tmp_path).exists() else []
    assert len(left) == (step == "fsync:when=2")


@pytest.mark.root
def test_full_disk_fails_the_del(hasty: Shim, tmp_path: Path) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(tmp_path / "state"))
    try:
        error = error_of(hasty.run("DEL", NETCONF.ljust(1 << 17)))
        assert (error["code"], "No space left on device" in error["msg"]) == (5, True)
        assert list(spool_of(tmp_path).iterdir()) == []
        assert hasty.run("DEL").returncode == 0
    finally:
        run("umount", str(tmp_path / "state"))


@pytest.mark.parametrize("by", ["number", "size", "draft"])
def test_full_spool_fails_the_del_and_is_named(hasty: Shim, tmp_path: Path, by: str) -> None:
    """A repeated DEL replaces its file, so it has room."""
    assert hasty.run("DEL").returncode == 0
    if by == "size":
        (spool_of(tmp_path) / "x").touch()
        os.truncate(spool_of(tmp_path) / "x", MAX_BYTES)
    else:
        for number in range(MAX_FILES - 1):
            (spool_of(tmp_path) / f"{'.' if by == 'draft' else ''}{number:016x}").touch()
    error = error_of(hasty.run("DEL", CNI_CONTAINERID="c2"))
    assert error["code"] == 11
    assert f"{spool_of(tmp_path)}: it has 4096 files or 64 MiB" in error["msg"]
    assert error["details"].startswith("start the agent, which empties it, and repeat the call")
    assert hasty.run("DEL").returncode == (by == "size")
    assert len([path for path in spool_of(tmp_path).iterdir() if read_or_none(path)]) == 1


def read_or_none(path: Path) -> object:
    with suppress(FrameError):
        return read(path.read_bytes()[: 1 << 20])
    return None


@pytest.mark.parametrize("what", ["link", "file", "readable", "no state directory"])
def test_spool_that_others_may_change_is_not_used(hasty: Shim, tmp_path: Path, what: str) -> None:
    spool = spool_of(tmp_path)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    match what:
        case "link":
            spool.symlink_to(tmp_path / "elsewhere")
        case "file":
            spool.touch()
        case "readable":
            spool.mkdir()
            spool.chmod(0o750)
        case _:
            spool.parent.rmdir()
    error = error_of(hasty.run("DEL"))
    assert error["code"] == 5
    assert str(spool) in error["msg"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.root
def test_spool_of_another_user_is_not_used(hasty: Shim, tmp_path: Path) -> None:
    spool_of(tmp_path).mkdir(mode=0o700)
    os.chown(spool_of(tmp_path), 65534, 65534)
    assert "other users have access to it" in error_of(hasty.run("DEL"))["msg"]
    assert list(spool_of(tmp_path).iterdir()) == []


def test_parallel_dels_do_not_exceed_the_limit(hasty: Shim, tmp_path: Path) -> None:
    assert hasty.run("DEL").returncode == 0
    for number in range(MAX_FILES - 4):
        (spool_of(tmp_path) / f"{number:016x}").touch()
    processes = [begin(hasty, "DEL", CNI_CONTAINERID=f"d{number}") for number in range(12)]
    for process in processes:
        process.communicate()
    done = [process for process in processes if process.returncode == 0]
    assert len(spooled_files(tmp_path)) == MAX_FILES - 3 + len(done) <= MAX_FILES
