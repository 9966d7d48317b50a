"""The native executable: what a runtime sees of it, with a small server where the agent would be, and with none."""

import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc.cni.client import call
from svc.cni.frame import REPLY_LIMIT, STDIN_LIMIT, Frame, FrameError, RequestReader, pack_patience, pack_reply
from svc.cni.inputs import Reply

ROOT = Path(__file__).parents[2]
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
NETCONF = b'{"cniVersion":"1.0.0","name":"net","type":"svc"}'
ATTACHMENT = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/proc/self/ns/net", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
NEEDED = {
    "ADD": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
    "DEL": ["CNI_CONTAINERID", "CNI_IFNAME"],
    "CHECK": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
    "GC": ["CNI_PATH"],
    "STATUS": [],
    "VERSION": [],
}
CALLS = [verb for verb in NEEDED if verb != "VERSION"]
PATIENCE = 30.0  # seconds until a test gives up on the executable

Result = subprocess.CompletedProcess[bytes]


# What is built


def compile_shim(target: Path, *extra: str) -> Path:
    """By the command line of the build, with musl where it is there."""
    compiler = shutil.which("musl-gcc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    recipe = re.search(r"COMMAND \$\{shim_cc\}(.*?)-o svc\b", (ROOT / "CMakeLists.txt").read_text(), re.DOTALL)
    assert recipe, "the build's command line is not where it was"
    flags = shlex.split(recipe[1].replace("${SKBUILD_PROJECT_VERSION}", "1.2.3"))
    subprocess.run([compiler, *flags, *extra, "-o", target, ROOT / "_core/shim.c"], check=True)
    return target


@pytest.fixture(scope="session")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SVC_SHIM names one that is built already."""
    built = os.environ.get("SVC_SHIM")
    return Path(built) if built else compile_shim(tmp_path_factory.mktemp("shim") / "svc")


@pytest.fixture(scope="session")
def hasty_executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program with seconds of 10 ms."""
    return compile_shim(tmp_path_factory.mktemp("hasty") / "svc", "-DSECOND_MS=10")


@dataclass(frozen=True)
class Shim:
    """An installation: the executable and its record in one directory, the agent's socket in another."""

    path: Path
    socket: Path

    def record(self, text: str) -> None:
        (self.path.parent / "svc.install").write_text(text)

    def named(self, name: str) -> "Shim":
        link(self.path, self.path.with_name(name))
        return Shim(self.path.with_name(name), self.socket)

    def run(self, verb: str, stdin: bytes = NETCONF, **variables: str) -> Result:
        return self.run_with({"CNI_COMMAND": verb, **ATTACHMENT, **variables}, stdin)

    def run_with(self, environment: dict[str, str], stdin: bytes = NETCONF) -> Result:
        return subprocess.run([self.path], env=environment, input=stdin, capture_output=True, timeout=PATIENCE, check=False)

    def run_in_shell(
        self, redirections: str, verb: str, stdin: IO[bytes] | int | None = None, stdout: IO[bytes] | int = subprocess.PIPE
    ) -> Result:
        """With a standard input, or a standard output, of its own kind."""
        command = ["/bin/sh", "-c", f'exec "$0" {redirections}', str(self.path)]
        environment = {"CNI_COMMAND": verb, **ATTACHMENT}
        return subprocess.run(
            command, env=environment, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=PATIENCE, check=False
        )


def link(source: Path, target: Path) -> None:
    """A copy could still be open for writing in a forked child when it is executed: ETXTBSY."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def install(executable: Path, directory: Path) -> Shim:
    (directory / "bin").mkdir()
    link(executable, directory / "bin/svc")
    shim = Shim(directory / "bin/svc", directory / "agent.sock")
    shim.record(f"socket={shim.socket}\npython=/nonexistent/python3\n")
    return shim


@pytest.fixture
def shim(executable: Path, tmp_path: Path) -> Shim:
    return install(executable, tmp_path)


@pytest.fixture
def hasty_shim(hasty_executable: Path, tmp_path: Path) -> Shim:
    return install(hasty_executable, tmp_path)


# Where the agent would be


@dataclass(frozen=True)
class Received:
    """A request, the device and inode of the descriptor that came with its first byte, and the process that sent it."""

    frame: Frame
    descriptor: tuple[int, int] | None
    pid: int


@dataclass
class FakeAgent:
    """Serves every connection in a thread of its own, by `handle`."""

    path: Path
    handle: Callable[["FakeAgent", socket.socket], None]
    received: list[Received] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> "FakeAgent":
        self._connections: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen(1024)
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        self._acceptor.join()
        self._socket.close()
        for connection in self._connections:
            connection.join()
        assert not self.failures

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._connections.append(threading.Thread(target=self._serve, args=[connection]))
                self._connections[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        with connection:
            try:
                self.handle(self, connection)
            except Exception as failure:
                self.failures.append(failure)

    def receive(self, connection: socket.socket) -> Received:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
        identity = None
        for descriptor in descriptors:
            status = os.fstat(descriptor)
            identity = status.st_dev, status.st_ino
            os.close(descriptor)
        reader = RequestReader()
        while (frame := reader.feed(data)) is None:
            data = connection.recv(1 << 16)
            assert data, "the request ends early"
        self.received.append(Received(frame, identity, int.from_bytes(credentials[:4], sys.byteorder)))
        return self.received[-1]


Handler = Callable[[FakeAgent, socket.socket], None]


def answering(status: int = 0, stdout: bytes = b"", stderr: bytes = b"", piece: int = 1 << 20) -> Handler:
    return sending(pack_reply(status, stdout, stderr), piece)


def sending(data: bytes, piece: int = 1 << 20) -> Handler:
    """Then closes the connection."""

    def handle(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        for start in range(0, len(data), piece):
            connection.sendall(data[start : start + piece])

    return handle


def hang(agent: FakeAgent, connection: socket.socket) -> None:
    """Until the executable gives up."""
    agent.receive(connection)
    assert connection.recv(1) == b""


@pytest.fixture
def agent(shim: Shim) -> Iterator[FakeAgent]:
    with FakeAgent(shim.socket, answering(0, b'{"cniVersion":"1.0.0"}\n')) as running:
        yield running


def error_of(result: Result) -> dict[str, Any]:
    """The one error object on stdout; nothing on stderr."""
    assert result.returncode == 1
    assert result.stderr == b""
    error = json.loads(result.stdout)
    assert list(error) == ["cniVersion", "code", "msg", "details"]
    assert error["msg"]
    assert error["details"]
    return dict(error)


def version_of(result: Result) -> str:
    assert result.returncode == 0
    assert result.stderr == b""
    answer = json.loads(result.stdout)
    assert answer["supportedVersions"] == VERSIONS
    assert list(answer) == ["cniVersion", "supportedVersions"]
    return str(answer["cniVersion"])


# The file


def test_executable_is_static(executable: Path) -> None:
    """It has no interpreter, so it runs on any host's libc."""
    data = executable.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    table, size, count = (int.from_bytes(data[start : start + width], "little") for start, width in ((32, 8), (54, 2), (56, 2)))
    kinds = {int.from_bytes(data[table + index * size :][:4], "little") for index in range(count)}
    assert 1 in kinds  # PT_LOAD
    assert 3 not in kinds  # PT_INTERP


def test_executable_is_small(executable: Path) -> None:
    """Every pod start reads it."""
    if "SVC_SHIM" in os.environ or not shutil.which("musl-gcc"):
        pytest.skip("not built with musl here")
    assert executable.stat().st_size <= 64 << 10


# Its name


@pytest.mark.parametrize("name", ["svc", "svc-ipam", "calico", "a name"])
def test_name_is_that_of_the_call(shim: Shim, agent: FakeAgent, name: str) -> None:
    """One executable is several plugins."""
    (shim if name == "svc" else shim.named(name)).run("STATUS")
    assert agent.received[0].frame.name == name


def test_name_is_the_last_part_of_the_first_argument(shim: Shim, agent: FakeAgent) -> None:
    """What the file is called does not count."""
    subprocess.run(["x/y/other"], executable=shim.path, env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.DEVNULL, check=True)
    assert agent.received[0].frame.name == "other"


def test_too_long_name_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """The frame has room for 256 bytes."""
    command, environment = ["n" * 257], {"CNI_COMMAND": "STATUS"}
    result = subprocess.run(command, executable=shim.path, env=environment, input=NETCONF, capture_output=True, check=False)
    assert error_of(result)["code"] == 4


@pytest.mark.parametrize("environment", [{}, {"CNI_COMMAND": ""}], ids=["unset", "empty"])
@pytest.mark.parametrize("name", ["svc", "svc-ipam"])
def test_without_a_command_it_says_what_it_is(shim: Shim, environment: dict[str, str], name: str) -> None:
    """A person who runs it by hand is no caller in error."""
    result = (shim if name == "svc" else shim.named(name)).run_with(environment)
    assert (result.returncode, result.stdout) == (0, b"")
    said = re.fullmatch(rf"{name} (\S+): CNI plugin, spec versions (.*)\n", result.stderr.decode())
    assert said
    assert said[2] == ", ".join(VERSIONS)


# What a call needs


@pytest.mark.parametrize("verb", [verb for verb, needed in NEEDED.items() if needed])
@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_all_missing_variables_are_named_at_once(shim: Shim, verb: str, value: str | None) -> None:
    """A second round for the second fault is one too many."""
    environment = {"CNI_COMMAND": verb} | ({} if value is None else dict.fromkeys(ATTACHMENT, value))
    error = error_of(shim.run_with(environment))
    assert error["code"] == 4
    assert error["cniVersion"] == "1.0.0"
    assert re.findall(r"CNI_\w+", error["msg"]) == NEEDED[verb]
    assert verb in error["details"]


@pytest.mark.parametrize(("verb", "variable"), [(verb, variable) for verb in CALLS for variable in ATTACHMENT])
def test_only_what_the_verb_needs_is_required(shim: Shim, agent: FakeAgent, verb: str, variable: str) -> None:
    """DEL comes without a netns once the sandbox is gone, STATUS without anything."""
    result = shim.run_with({"CNI_COMMAND": verb} | {name: value for name, value in ATTACHMENT.items() if name != variable})
    if variable in NEEDED[verb]:
        assert re.findall(r"CNI_\w+", error_of(result)["msg"]) == [variable]
    else:
        assert result.returncode == 0
    assert len(agent.received) == (variable not in NEEDED[verb])


@pytest.mark.parametrize("command", ["add", "ADD ", "UPDATE", "ADD\n", 'A"D\\D', "\x01\x1f\x7f", "Ä€😀"])
def test_unknown_command_is_named(shim: Shim, command: str) -> None:
    """In JSON that holds whatever it is."""
    error = error_of(shim.run(command))
    assert error["code"] == 4
    assert command in error["msg"]
    assert all(verb in error["details"] for verb in NEEDED)


@given(st.binary(min_size=1, max_size=200).filter(lambda command: b"\0" not in command))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_gives_valid_json(shim: Shim, command: bytes) -> None:
    """UTF-8 stays what it is, any other byte is shown by its number."""
    result = shim.run(os.fsdecode(command))
    error = error_of(result)
    shown = command.decode("utf-8", "surrogateescape")
    assert error["msg"].endswith("".join(chr(ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else c for c in shown))


def test_endless_command_gives_valid_json(shim: Shim) -> None:
    """Its message is cut before it is larger than the buffer."""
    assert error_of(shim.run("\x01" * 100_000))["code"] == 4


# VERSION


@pytest.mark.parametrize("version", VERSIONS)
def test_version_answers_in_the_version_asked(shim: Shim, version: str) -> None:
    """With neither agent nor Python."""
    assert version_of(shim.run_with({"CNI_COMMAND": "VERSION"}, b'{"cniVersion":"%s"}' % version.encode())) == version


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (b"", "1.1.0"),
        (b"\0\xff garbage \x80", "1.1.0"),
        (b'{"cniVersion"', "1.1.0"),
        (b'{"cniVersion":"0.4.0', "1.1.0"),
        (b'{"cniVersion":""}', "1.1.0"),
        (b'{"cniVersion":"v1.0.0"}', "1.1.0"),
        (b'{"cniVersion":"1.0.0\\"x"}', "1.1.0"),
        (b'{"cniVersion":"1111111111.11.11"}', "1111111111.11.11"),
        (b'{"cniVersion":"1111111111.11.111"}', "1.1.0"),
        (b'{"name":"n", "cniVersion" :\r\n\t "0.3.1"}', "0.3.1"),
        (b'{"cniVersion":1,"x":{"cniVersion":"0.4.0"}}', "0.4.0"),
        (b'{"x":"cniVersion","cniVersion":"0.4.0"}', "0.4.0"),
        (b'{"cniVersions":["1.0.0"],"cniVersion":"0.4.0"}', "0.4.0"),
        (b'{"cniVersion":"bad","x":{"cniVersion":"0.4.0"}}', "1.1.0"),
        (b"\0" * 1000 + b'"cniVersion":"0.2.0"', "0.2.0"),
        (b'"' * 4000 + b'"cniVersion":"0.2.0"', "0.2.0"),
    ],
)
def test_version_is_found_by_a_scan(shim: Shim, stdin: bytes, version: str) -> None:
    """The first value counts when it is 1 to 16 digits and dots."""
    assert version_of(shim.run_with({"CNI_COMMAND": "VERSION"}, stdin)) == version


@pytest.mark.parametrize("redirections", ["<&-", "</dev/null", "</dev/zero"])
def test_version_needs_no_stdin(shim: Shim, redirections: str) -> None:
    """Runtimes may send nothing; what never ends is not read to its end."""
    assert version_of(shim.run_in_shell(redirections, "VERSION")) == "1.1.0"


@pytest.mark.parametrize(("sent", "version"), [(b"", "1.1.0"), (b'{"cniVersion":"0.4.0"}', "0.4.0")])
def test_version_does_not_wait_for_an_idle_pipe(shim: Shim, sent: bytes, version: str) -> None:
    """What came within 50 ms counts."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as other_end:
        other_end.write(sent)
        assert version_of(shim.run_in_shell("", "VERSION", stdin=stdin)) == version


def test_version_does_not_wait_for_a_terminal(shim: Shim) -> None:
    """A person types nothing."""
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb"), os.fdopen(terminal, "rb") as stdin:
        assert version_of(shim.run_in_shell("", "VERSION", stdin=stdin)) == "1.1.0"


# The request


@pytest.mark.parametrize("verb", CALLS)
def test_agent_gets_the_whole_call(shim: Shim, agent: FakeAgent, verb: str) -> None:
    """Name, environment and stdin arrive as they were."""
    assert shim.run(verb, CNI_ARGS="A=1;B=2").returncode == 0
    (received,) = agent.received
    assert received.frame == Frame("svc", {"CNI_COMMAND": verb, "CNI_ARGS": "A=1;B=2", **ATTACHMENT}, NETCONF, True)


def test_only_variables_of_the_call_are_sent(shim: Shim, agent: FakeAgent) -> None:
    """The runtime's own secrets and settings are none of the agent's business."""
    ours = {
        "CNI_COMMAND": "DEL",
        **ATTACHMENT,
        "CNI_": "x",
        "CNI_EMPTY": "",
        "CNI_BYTES": "\udcff=ä",
        "TRACEPARENT": "00-1-2-03",
    }
    foreign = {"PATH": "/bin", "HOME": "/root", "AWS_SECRET": "s", "XCNI_A": "1", "TRACEPARENT_A": "1", "TRACESTATE": "a=b"}
    shim.run_with(ours | foreign)
    assert agent.received[0].frame.environment == ours


def test_too_large_environment_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """The kernel would allow more than the frame."""
    error = error_of(shim.run("ADD", CNI_ARGS="a" * 100_000, CNI_MORE="a" * 100_000))
    assert (error["code"], agent.received) == (4, [])


@pytest.mark.root
def test_descriptor_is_the_network_namespace(shim: Shim, agent: FakeAgent) -> None:
    """It comes with the first byte, so the agent needs no path."""
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout
        holder.stdout.readline()
        namespace = f"/proc/{holder.pid}/ns/net"
        shim.run("ADD", CNI_NETNS=namespace)
        status = os.stat(namespace)
        holder.communicate(b"\n")
    assert agent.received[0].descriptor == (status.st_dev, status.st_ino)
    assert agent.received[0].descriptor != (os.stat("/proc/self/ns/net").st_dev, os.stat("/proc/self/ns/net").st_ino)


@pytest.mark.parametrize("netns", ["/nonexistent/netns", "\n", "relative"])
def test_missing_netns_is_left_to_the_agent(shim: Shim, agent: FakeAgent, netns: str) -> None:
    """DEL must succeed then, ADD must not: the agent knows."""
    assert shim.run("DEL", CNI_NETNS=netns).returncode == 0
    (received,) = agent.received
    assert (received.frame.has_descriptor, received.descriptor) == (False, None)
    assert received.frame.environment["CNI_NETNS"] == netns


def test_netns_that_would_block_does_not(shim: Shim, agent: FakeAgent, tmp_path: Path) -> None:
    """Opening a pipe that nobody writes would hang."""
    os.mkfifo(tmp_path / "fifo")
    assert shim.run("ADD", CNI_NETNS=str(tmp_path / "fifo")).returncode == 0
    assert agent.received[0].descriptor


# stdin


def test_stdin_may_have_a_mebibyte(shim: Shim, agent: FakeAgent) -> None:
    """A GC on a full node lists every attachment."""
    stdin = NETCONF.ljust(STDIN_LIMIT)
    assert shim.run("GC", stdin).returncode == 0
    assert agent.received[0].frame.stdin == stdin


def test_stdin_over_a_mebibyte_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """One byte more is refused by name of the limit."""
    error = error_of(shim.run("GC", NETCONF.ljust(STDIN_LIMIT + 1)))
    assert (error["code"], error["cniVersion"], agent.received) == (7, "1.0.0", [])
    assert "1 MiB" in error["msg"]


def test_endless_stdin_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """It is not read to an end that never comes."""
    assert error_of(shim.run_in_shell("</dev/zero", "ADD"))["code"] == 7


def test_unreadable_stdin_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """A directory, for one."""
    error = error_of(shim.run_in_shell("</", "ADD"))
    assert error["code"] == 5
    assert "directory" in error["msg"].lower()


def test_stdin_that_does_not_end_is_an_error(hasty_shim: Shim) -> None:
    """The runtime forgot to close it."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as other_end:
        other_end.write(NETCONF)
        error = error_of(hasty_shim.run_in_shell("", "ADD", stdin=stdin))
    assert (error["code"], error["cniVersion"]) == (5, "1.0.0")
    assert "10 s" in error["msg"]


@pytest.mark.parametrize("redirections", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_do_no_harm(shim: Shim, redirections: str) -> None:
    """Else the agent's socket would become one of them and take its own reply."""

    def handle(agent: FakeAgent, connection: socket.socket) -> None:
        answering(3, b"out" * 100_000, b"err" * 100_000)(agent, connection)
        assert connection.recv(1) == b""

    with FakeAgent(shim.socket, handle) as agent:
        assert shim.run_in_shell(redirections, "ADD").returncode == 3
        assert agent.received[0].frame.stdin == b""


# The reply


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_reply_is_printed_and_its_status_kept(shim: Shim, status: int) -> None:
    """Byte for byte."""
    with FakeAgent(shim.socket, answering(status, b"\0out\xff\n", b"err\n")):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (status, b"\0out\xff\n", b"err\n")


def test_reply_comes_in_single_bytes(shim: Shim) -> None:
    """A stream has no messages."""
    with FakeAgent(shim.socket, answering(1, b"result", b"log", piece=1)):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (1, b"result", b"log")


@pytest.mark.parametrize("piece", [17, 4097, 1 << 20])
def test_largest_reply_is_printed_whole(shim: Shim, piece: int) -> None:
    """Past the size of any pipe."""
    stdout = os.urandom(1 << 16) * (REPLY_LIMIT >> 16) if piece == 1 << 20 else os.urandom(100_000)
    with FakeAgent(shim.socket, answering(0, stdout, b"", piece)):
        result = shim.run("ADD")
    assert (result.returncode, result.stdout, result.stderr) == (0, stdout, b"")


def test_reply_goes_to_a_pipe_that_does_not_block(shim: Shim) -> None:
    """Some runtimes hand out such pipes; a full one is waited for."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    stdout = os.urandom(1 << 20)
    with FakeAgent(shim.socket, answering(0, stdout)), os.fdopen(reading, "rb") as output:
        with subprocess.Popen([shim.path], env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.DEVNULL, stdout=writing) as process:
            os.close(writing)
            assert output.read() == stdout
    assert process.returncode == 0


def test_result_that_nobody_can_read_is_no_success(shim: Shim, agent: FakeAgent) -> None:
    """And no death by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stdout:
        result = shim.run_in_shell("", "STATUS", stdin=subprocess.DEVNULL, stdout=stdout)
    assert result.returncode == 1


def test_result_that_nobody_reads_is_given_up(hasty_shim: Shim) -> None:
    """A full pipe holds the executable for 10 s, not for ever."""
    reading, writing = os.pipe()
    with (
        FakeAgent(hasty_shim.socket, answering(0, bytes(1 << 20))),
        os.fdopen(reading, "rb"),
        os.fdopen(writing, "wb") as stdout,
    ):
        result = hasty_shim.run_in_shell("", "GC", stdin=subprocess.DEVNULL, stdout=stdout)
    assert result.returncode == 1


def test_refusal_before_the_end_of_the_request_is_printed(shim: Shim) -> None:
    """The agent need not read what it refuses."""

    def refuse(_: FakeAgent, connection: socket.socket) -> None:
        connection.sendall(pack_reply(1, b'{"code":7}', b""))

    with FakeAgent(shim.socket, refuse):
        result = shim.run("GC", NETCONF.ljust(STDIN_LIMIT))
    assert (result.returncode, result.stdout) == (1, b'{"code":7}')


REPLY = pack_reply(0, b"result", b"log")


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("size", [0, 1, 15, 16, len(REPLY) - 1])
def test_connection_closed_early_is_an_error(shim: Shim, verb: str, size: int) -> None:
    """Half a result is not printed."""
    with FakeAgent(shim.socket, sending(REPLY[:size])):
        error = error_of(shim.run(verb))
    assert (error["code"], error["cniVersion"]) == (50 if verb == "STATUS" else 5, "1.0.0")
    assert "closed" in error["msg"]
    assert str(shim.socket) in error["details"]


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol"),
        (b"SVC2" + bytes(12), "protocol"),
        (b"SVC1\0\2\0\0" + bytes(8), "protocol"),
        (b"SVC1" + bytes(4) + (REPLY_LIMIT + 1).to_bytes(4, "little") + bytes(4), "16 MiB"),
        (b"SVC1" + bytes(4) + b"\xff" * 8, "16 MiB"),
    ],
    ids=["other protocol", "other version", "status 512", "too large", "far too large"],
)
def test_reply_that_is_none_is_an_error(shim: Shim, reply: bytes, word: str) -> None:
    """Something else may listen there."""
    with FakeAgent(shim.socket, sending(reply)):
        error = error_of(shim.run("ADD"))
    assert error["code"] == 5
    assert word in error["msg"]


# Deadlines


def test_status_is_answered_within_a_second(shim: Shim) -> None:
    """Runtimes hold a lock while they ask."""
    with FakeAgent(shim.socket, hang):
        error = error_of(shim.run("STATUS"))
    assert error["code"] == 50
    assert "within 1 s" in error["msg"]


@pytest.mark.parametrize(
    ("verb", "limit"), [("ADD", "90 s"), ("DEL", "90 s"), ("CHECK", "10 s"), ("GC", "90 s"), ("STATUS", "1 s")]
)
def test_every_verb_has_a_deadline(hasty_shim: Shim, verb: str, limit: str) -> None:
    """Its error says which."""
    with FakeAgent(hasty_shim.socket, hang):
        error = error_of(hasty_shim.run(verb))
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert f"within {limit}" in error["msg"]


def test_agent_may_ask_for_more_time(hasty_shim: Shim) -> None:
    """As often as it likes; CHECK has 100 ms here."""

    def wait(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        for _ in range(2):
            connection.sendall(pack_patience(PATIENCE))
            time.sleep(0.2)
        connection.sendall(pack_reply(0, b"done", b""))

    with FakeAgent(hasty_shim.socket, wait):
        result = hasty_shim.run("CHECK")
    assert (result.returncode, result.stdout) == (0, b"done")


def test_time_that_was_asked_for_is_a_deadline_too(hasty_shim: Shim) -> None:
    def wait(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        connection.sendall(pack_patience(0.3))
        assert connection.recv(1) == b""

    with FakeAgent(hasty_shim.socket, wait):
        assert "did not answer within the time that it asked for" in error_of(hasty_shim.run("CHECK"))["msg"]


def test_deadline_holds_while_bytes_trickle(hasty_shim: Shim) -> None:
    """It is for the whole reply, not for the next byte."""

    def trickle(agent: FakeAgent, connection: socket.socket) -> None:
        agent.receive(connection)
        connection.sendall(b"SVC1" + bytes(4) + (1 << 20).to_bytes(4, "little") + bytes(4))
        pause = threading.Event()
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                connection.sendall(b"x")
                pause.wait(0.001)

    with FakeAgent(hasty_shim.socket, trickle):
        assert "within 10 s" in error_of(hasty_shim.run("CHECK"))["msg"]


@pytest.mark.parametrize(("verb", "limit"), [("GC", "2 s"), ("STATUS", "1 s")])
def test_request_that_is_not_taken_is_given_up(hasty_shim: Shim, verb: str, limit: str) -> None:
    """An agent that hangs before it reads."""
    given_up = threading.Event()

    def ignore(_: FakeAgent, __: socket.socket) -> None:
        given_up.wait(PATIENCE)

    with FakeAgent(hasty_shim.socket, ignore):
        error = error_of(hasty_shim.run(verb, NETCONF.ljust(STDIN_LIMIT)))
        given_up.set()
    assert error["code"] == (50 if verb == "STATUS" else 5)
    assert f"within {limit}" in error["msg"]


def test_full_backlog_is_given_up(hasty_shim: Shim) -> None:
    """An agent that hangs before it accepts is there: a one-shot beside it could do harm."""
    with socket.socket(socket.AF_UNIX) as deaf, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        deaf.bind(str(hasty_shim.socket))
        deaf.listen(0)
        first.connect(str(hasty_shim.socket))
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.connect(str(hasty_shim.socket))
        error = error_of(hasty_shim.run("ADD"))
    assert error["code"] == 5
    assert "within 2 s" in error["msg"]


# No agent

ONE_SHOT = """#!{python} -I
import json, os, sys
json.dump({{
    "arguments": sys.argv[1:],
    "environment": open("/proc/self/environ").read().split("\\0")[:-1],
    "stdin": sys.stdin.read(),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "pid": os.getpid(),
}}, sys.stdout)
sys.exit(7)
"""


def write_one_shot(path: Path) -> Path:
    path.write_text(ONE_SHOT.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def lonely_shim(shim: Shim, tmp_path: Path) -> Shim:
    """No agent, and a `python` that tells what it was given."""
    shim.record(f"socket={shim.socket}\npython={write_one_shot(tmp_path / 'python')}\n")
    return shim


@pytest.mark.parametrize("verb", CALLS)
def test_without_an_agent_the_one_shot_takes_over(lonely_shim: Shim, verb: str) -> None:
    """It gets what the executable got, and its end is the executable's."""
    ours = {"CNI_COMMAND": verb, **ATTACHMENT, "TRACEPARENT": "00-1-2-03", "PATH": "/bin", "HOME": "/root"}
    result = lonely_shim.run_with(ours | {"PYTHONPATH": "/tmp", "LD_PRELOAD": "", "TRACESTATE": "a=b"})
    assert result.returncode == 7
    told = json.loads(result.stdout)
    record = str(lonely_shim.path.parent / "svc.install")
    assert told["arguments"] == ["-I", "-m", "svc.cni", "--name", "svc", "--install", record]
    assert sorted(told["environment"]) == sorted(f"{name}={value}" for name, value in ours.items())
    assert told["stdin"] == NETCONF.decode()
    assert told["descriptors"] == ["0", "1", "2", "3"]  # 3 lists them


@pytest.mark.parametrize("size", [0, 1 << 16, STDIN_LIMIT])
def test_one_shot_gets_all_of_stdin(lonely_shim: Shim, size: int) -> None:
    """More than a pipe would hold."""
    assert json.loads(lonely_shim.run("GC", b" " * size).stdout)["stdin"] == " " * size


def test_one_shot_is_no_child(lonely_shim: Shim) -> None:
    """The runtime's kill and wait are for the process that does the work."""
    environment = {"CNI_COMMAND": "STATUS"}
    with subprocess.Popen([lonely_shim.path], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        told = json.loads(process.communicate()[0])
    assert told["pid"] == process.pid


@pytest.mark.parametrize("there", ["nothing", "stale socket", "file", "file on the way"])
def test_whatever_is_not_an_agent_is_no_agent(lonely_shim: Shim, there: str) -> None:
    """A socket that a killed agent left behind, for one."""
    if there == "stale socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(lonely_shim.socket))
    if there == "file":
        lonely_shim.socket.touch()
    if there == "file on the way":
        one_shot = lonely_shim.path.parent.parent / "python"
        lonely_shim.record(f"socket={lonely_shim.path}/agent.sock\npython={one_shot}\n")
    assert lonely_shim.run("DEL").returncode == 7


@pytest.mark.parametrize("verb", CALLS)
def test_one_shot_that_cannot_run_is_an_error(shim: Shim, verb: str) -> None:
    """It names the interpreter, the cause, and where the agent should be."""
    error = error_of(shim.run(verb))
    assert (error["code"], error["cniVersion"]) == (50 if verb == "STATUS" else 5, "1.0.0")
    assert error["msg"].startswith("the agent is not running and /nonexistent/python3")
    assert "No such file" in error["msg"]
    assert str(shim.socket) in error["details"]


# The install record


def test_record_may_hold_more_than_is_read(shim: Shim, agent: FakeAgent) -> None:
    """Empty lines, other keys, no newline at the end."""
    shim.record(f"names=default\n\n# socket=/x\npython\nsocket\nXsocket=/y\nsocket=\nsocket={shim.socket}")
    assert shim.run("STATUS").returncode == 0


def test_record_is_found_beside_the_executable_itself(shim: Shim, agent: FakeAgent, tmp_path: Path) -> None:
    """Not beside a link to it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/svc").symlink_to(shim.path)
    assert Shim(tmp_path / "elsewhere/svc", shim.socket).run("STATUS").returncode == 0


def test_record_of_ones_own_name_counts_before_the_common_one(shim: Shim, agent: FakeAgent) -> None:
    """So several deployments share a directory; what the call is named does not matter."""
    other = shim.named("other")
    for name, profile in (("svc", ""), ("other", "profile=calico\n")):
        (shim.path.parent / f"{name}.install").write_text(f"socket={shim.socket}\n{profile}")
    assert other.run("STATUS").returncode == shim.run("STATUS").returncode == 0
    assert [(each.frame.name, each.frame.profile) for each in agent.received] == [("other", "calico"), ("svc", "")]


def test_executable_without_a_record_takes_the_common_one(shim: Shim, agent: FakeAgent) -> None:
    """As every executable did before they had their own."""
    shim.record(f"socket={shim.socket}\nprofile=/etc/names.toml")
    assert shim.named("svc-ipam").run("STATUS").returncode == 0
    assert agent.received[0].frame.profile == "/etc/names.toml"


def test_replaced_executable_keeps_its_record(shim: Shim, agent: FakeAgent) -> None:
    """An installation puts another file in its place while it waits for its input."""
    other = shim.named("other")
    (shim.path.parent / "other.install").write_text(f"socket={shim.socket}\nprofile=calico\n")
    with subprocess.Popen(
        [other.path], env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        shutil.copy(shim.path, shim.path.with_name("draft"))
        os.rename(shim.path.with_name("draft"), other.path)
        running.communicate(NETCONF)
    assert running.returncode == 0
    assert agent.received[0].frame.profile == "calico"


def test_environment_has_no_say_in_the_profile(shim: Shim, agent: FakeAgent) -> None:
    """It is the installation's."""
    assert shim.run("STATUS", profile="x", PROFILE="x", CNI_PROFILE="x", SVC_PROFILE="x").returncode == 0
    assert agent.received[0].frame.profile == ""


# Options


@pytest.mark.parametrize("environment", [{}, {"CNI_COMMAND": "ADD"}], ids=["by hand", "by a runtime"])
def test_version_is_told_bare(shim: Shim, environment: dict[str, str]) -> None:
    """Without a record, an agent or input."""
    (shim.path.parent / "svc.install").unlink()
    done = subprocess.run([shim.path, "-v"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.fullmatch(rb"\d+\.\d+\.\d+\n", done.stdout)


def test_connection_test_is_the_one_shots(lonely_shim: Shim) -> None:
    """It gets its input untouched."""
    environment = {"PATH": "/bin", "OTHER": "x"}
    done = subprocess.run([lonely_shim.path, "-t"], env=environment, input=NETCONF, capture_output=True, check=False)
    told = json.loads(done.stdout)
    record = str(lonely_shim.path.parent / "svc.install")
    assert told["arguments"] == ["-I", "-m", "svc.cni", "--name", "svc", "--install", record, "--test"]
    assert (told["stdin"], told["environment"]) == (NETCONF.decode(), ["PATH=/bin"])
    assert done.returncode == 7


def test_connection_test_that_cannot_run_is_an_error(shim: Shim) -> None:
    """With the interpreter and the record that names it."""
    done = subprocess.run([shim.path, "-t"], env={}, input=NETCONF, capture_output=True, check=False)
    error = error_of(done)
    assert error["msg"].startswith("/nonexistent/python3 cannot be run: No such file")
    assert str(shim.path.parent / "svc.install") in error["details"]


def test_record_of_4_kib_is_read_and_a_larger_one_refused(shim: Shim, agent: FakeAgent) -> None:
    """Half a record could name the wrong socket."""
    text = f"socket={shim.socket}\n"
    shim.record(text.rjust(4096, "#").replace("#socket", "\nsocket"))
    assert shim.run("STATUS").returncode == 0
    shim.record(text.rjust(4097, "#"))
    error = error_of(shim.run("ADD"))
    assert error["code"] == 5
    assert "svc.install" in error["msg"]


def test_unreadable_record_is_an_error(shim: Shim) -> None:
    """Its defaults may be another installation's."""
    record = shim.path.parent / "svc.install"
    record.unlink()
    record.mkdir()
    error = error_of(shim.run("STATUS"))
    assert error["code"] == 50
    assert str(record) in error["msg"]


@pytest.mark.skipif(Path("/var/run/svc/agent.sock").exists(), reason="an agent has the default socket")
@pytest.mark.parametrize("recorded", [False, True])
def test_python_beside_the_executable_is_the_default(shim: Shim, recorded: bool) -> None:
    """An installation in a virtual environment needs no record."""
    record = shim.path.parent / "svc.install"
    record.write_text(f"socket={shim.socket}\n")
    if not recorded:
        record.unlink()
    write_one_shot(shim.path.parent / "python3")
    assert json.loads(shim.run("STATUS").stdout)["arguments"][-1] == (str(record) if recorded else "")


@pytest.mark.parametrize(("size", "fits"), [(107, True), (108, False)])
def test_socket_path_has_the_kernels_limit(shim: Shim, size: int, fits: bool) -> None:
    """A longer one is an error that says so, not another socket."""
    path = f"/tmp/{'s' * (size - 5)}"
    shim.record(f"socket={path}\npython=/nonexistent\n")
    error = error_of(shim.run("ADD"))
    assert error["code"] == 5
    assert ("107" in error["msg"]) != fits
    assert path in error["msg"] + error["details"]


# Many, and none left


def test_two_hundred_calls_at_once(shim: Shim) -> None:
    """Each gets its own reply."""
    count = 200
    all_there = threading.Barrier(count)

    def echo(agent: FakeAgent, connection: socket.socket) -> None:
        received = agent.receive(connection)
        all_there.wait(PATIENCE)
        connection.sendall(pack_reply(0, received.frame.environment["CNI_CONTAINERID"].encode(), b""))

    with FakeAgent(shim.socket, echo):
        calls = []
        for index in range(count):
            environment = {"CNI_COMMAND": "ADD", **ATTACHMENT, "CNI_CONTAINERID": f"c{index}"}
            calls.append(subprocess.Popen([shim.path], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in calls]
    assert outputs == [f"c{index}".encode() for index in range(count)]
    assert {process.returncode for process in calls} == {0}


def test_call_holds_only_its_descriptors(shim: Shim) -> None:
    """Nothing to clean up if it is killed: standard descriptors, socket, namespace; no child."""
    seen = []

    def look(agent: FakeAgent, connection: socket.socket) -> None:
        process = Path(f"/proc/{agent.receive(connection).pid}")
        seen.append((len(list((process / "fd").iterdir())), (process / f"task/{process.name}/children").read_text()))
        connection.sendall(REPLY)

    with FakeAgent(shim.socket, look):
        assert shim.run("ADD").returncode == 0
    assert seen == [(5, "")]


def test_killed_call_closes_its_connection(shim: Shim) -> None:
    """So the agent learns that nobody waits any more."""

    def kill(agent: FakeAgent, connection: socket.socket) -> None:
        os.kill(agent.receive(connection).pid, signal.SIGKILL)
        assert connection.recv(1) == b""

    with FakeAgent(shim.socket, kill):
        assert shim.run("ADD").returncode == -signal.SIGKILL


# The client in Python

CALL = Frame("svc", {"CNI_COMMAND": "STATUS"}, NETCONF, False)


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.mark.parametrize("stdin", [NETCONF, bytes(STDIN_LIMIT)], ids=["usual", "largest"])
def test_client_makes_the_same_call(socket_path: Path, stdin: bytes) -> None:
    """With a descriptor on the first byte, which stays the caller's."""
    with FakeAgent(socket_path, answering(7, b"out", b"err", piece=1)) as agent, open("/proc/self/ns/net", "rb") as netns:
        frame = Frame("svc", CALL.environment, stdin, False)
        assert call(str(socket_path), frame, netns_fd=netns.fileno(), timeout=PATIENCE) == Reply(7, b"out", b"err")
        status = os.fstat(netns.fileno())
    assert agent.received[0].frame == Frame("svc", CALL.environment, stdin, True)
    assert agent.received[0].descriptor == (status.st_dev, status.st_ino)


def test_client_gives_up_at_its_timeout(socket_path: Path) -> None:
    """A hanging agent does not hang its tools."""
    with FakeAgent(socket_path, hang), pytest.raises(TimeoutError):
        call(str(socket_path), CALL, timeout=0.05)


def test_client_tells_what_is_no_reply(socket_path: Path) -> None:
    """Closed early, another protocol, nobody there."""

    def refuse(_: FakeAgent, connection: socket.socket) -> None:
        connection.sendall(REPLY[:-1])  # closed with the request unread: a reset

    with FakeAgent(socket_path, refuse), pytest.raises(ConnectionError, match="closed"):
        call(str(socket_path), CALL, timeout=PATIENCE)
    socket_path.unlink()
    with FakeAgent(socket_path, sending(REPLY[:-1])), pytest.raises(ConnectionError, match="closed"):
        call(str(socket_path), CALL, timeout=PATIENCE)
    socket_path.unlink()
    with FakeAgent(socket_path, sending(b"HTTP/1.1")), pytest.raises(FrameError):
        call(str(socket_path), CALL, timeout=PATIENCE)
    with pytest.raises(ConnectionRefusedError):
        call(str(socket_path), CALL, timeout=PATIENCE)
