"""The native executable: its file, its name, its options, the requirements of a call, and VERSION."""

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.shim import (
    ATTACHMENT,
    CALLS,
    NEEDED,
    NETCONF,
    VERSIONS,
    FakeAgent,
    Shim,
    error_of,
    version_of,
    write_one_shot,
)

# The file


def test_executable_is_static(executable: Path) -> None:
    """It has no interpreter, so that it runs with the libc of any host."""
    data = executable.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    table, size, count = (int.from_bytes(data[start : start + width], "little") for start, width in ((32, 8), (54, 2), (56, 2)))
    kinds = {int.from_bytes(data[table + index * size :][:4], "little") for index in range(count)}
    assert 1 in kinds  # PT_LOAD
    assert 3 not in kinds  # PT_INTERP


def test_executable_is_small(executable: Path) -> None:
    """The kernel loads it for every start of a pod."""
    if "SVC_SHIM" in os.environ or not shutil.which("musl-gcc"):
        pytest.skip("not built with musl here")
    assert executable.stat().st_size <= 64 << 10


# Its name


@pytest.mark.parametrize("name", ["svc", "svc-ipam", "calico", "a name"])
def test_plugin_name_is_that_of_the_call(shim: Shim, agent: FakeAgent, name: str) -> None:
    """One executable is several plugins."""
    shim.record(f"socket={shim.socket}", name)
    (shim if name == "svc" else shim.named(name)).run("STATUS")
    assert agent.received[0].frame.name == name


def test_plugin_name_is_the_base_name_of_the_first_argument(shim: Shim, agent: FakeAgent) -> None:
    """The name of the file is not used."""
    subprocess.run(["x/y/other"], executable=shim.path, env={"CNI_COMMAND": "STATUS"}, stdin=subprocess.DEVNULL, check=True)
    assert agent.received[0].frame.name == "other"


def test_too_long_name_is_an_error(shim: Shim, agent: FakeAgent) -> None:
    """The frame has room for 256 bytes."""
    command, environment = ["n" * 257], {"CNI_COMMAND": "STATUS"}
    result = subprocess.run(command, executable=shim.path, env=environment, input=NETCONF, capture_output=True, check=False)
    assert error_of(result)["code"] == 4


@pytest.mark.parametrize("environment", [{}, {"CNI_COMMAND": ""}], ids=["unset", "empty"])
@pytest.mark.parametrize("name", ["svc", "svc-ipam"])
def test_without_a_command_it_describes_itself(shim: Shim, environment: dict[str, str], name: str) -> None:
    """A user who runs it by hand has not made an invalid CNI call."""
    result = (shim if name == "svc" else shim.named(name)).run_with(environment)
    assert (result.returncode, result.stdout) == (0, b"")
    description = re.fullmatch(rf"{name} (\S+): CNI plugin, spec versions (.*)\n", result.stderr.decode())
    assert description
    assert description[2] == ", ".join(VERSIONS)


# Options


@pytest.mark.parametrize("environment", [{}, {"CNI_COMMAND": "ADD"}], ids=["by hand", "by a runtime"])
def test_version_option_prints_only_the_version(shim: Shim, environment: dict[str, str]) -> None:
    """It needs no record, agent or input."""
    (shim.path.parent / "svc.install").unlink()
    done = subprocess.run([shim.path, "-v"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.fullmatch(rb"\d+\.\d+\.\d+\n", done.stdout)


def test_connection_test_is_run_by_the_one_shot(shim_without_agent: Shim) -> None:
    """The one-shot gets the input unchanged."""
    environment = {"PATH": "/bin", "OTHER": "x"}
    done = subprocess.run([shim_without_agent.path, "-t"], env=environment, input=NETCONF, capture_output=True, check=False)
    printed = json.loads(done.stdout)
    record = str(shim_without_agent.path.parent / "svc.install")
    assert printed["arguments"] == ["-I", "-m", "svc.cni", "--signed", "--name", "svc", "--install", record, "--test"]
    assert (printed["stdin"], printed["environment"]) == (NETCONF.decode(), ["PATH=/bin"])
    assert done.returncode == 7


def test_connection_test_that_cannot_run_is_an_error(shim: Shim) -> None:
    """The error names the interpreter and the record that names it."""
    done = subprocess.run([shim.path, "-t"], env={}, input=NETCONF, capture_output=True, check=False)
    error = error_of(done)
    assert error["msg"].startswith("/nonexistent/python3 cannot be run: No such file")
    assert str(shim.path.parent / "svc.install") in error["details"]


@pytest.mark.parametrize("program", ["/bin/true", "/bin/echo"])
def test_connection_test_by_another_program_is_an_error(shim: Shim, program: str) -> None:
    shim.record(f"socket={shim.socket}\npython={program}\n")
    done = subprocess.run([shim.path, "-t"], env={}, input=NETCONF, capture_output=True, check=False)
    assert error_of(done)["msg"] == f"{program} ended without an answer"


def test_record_of_4_kib_is_read_and_a_larger_one_refused(shim: Shim, agent: FakeAgent) -> None:
    """A truncated record could name the wrong socket."""
    text = f"socket={shim.socket}\n"
    shim.record(text.rjust(4085, "#").replace("#socket", "\nsocket"), end="end=record\n")
    assert shim.run("STATUS").returncode == 0
    shim.record(text.rjust(4086, "#").replace("#socket", "\nsocket"), end="end=record\n")
    error = error_of(shim.run("ADD"))
    assert error["code"] == 5
    assert "svc.install" in error["msg"]


def test_unreadable_record_is_an_error(shim: Shim) -> None:
    """The default values could be those of another installation."""
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
    shim.record(f"socket={shim.socket}")
    if not recorded:
        record.unlink()
    write_one_shot(shim.path.parent / "python3")
    assert json.loads(shim.run("STATUS").stdout)["arguments"][-1] == (str(record) if recorded else "")


@pytest.mark.parametrize(("size", "fits"), [(107, True), (108, False)])
def test_too_long_socket_path_is_an_error(shim: Shim, size: int, fits: bool) -> None:
    """The kernel limits the path, and a truncated one would be another socket."""
    path = f"/tmp/{'s' * (size - 5)}"
    shim.record(f"socket={path}\npython=/nonexistent\n")
    error = error_of(shim.run("ADD"))
    assert error["code"] == 5
    assert ("107" in error["msg"]) != fits
    assert path in error["msg"] + error["details"]


# Requirements of a call


@pytest.mark.parametrize("verb", [verb for verb, needed in NEEDED.items() if needed])
@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_all_missing_variables_are_named_at_once(shim: Shim, verb: str, value: str | None) -> None:
    environment = {"CNI_COMMAND": verb} | ({} if value is None else dict.fromkeys(ATTACHMENT, value))
    error = error_of(shim.run_with(environment))
    assert error["code"] == 4
    assert error["cniVersion"] == "1.0.0"
    assert re.findall(r"CNI_\w+", error["msg"]) == NEEDED[verb]
    assert error["details"] == f"the container runtime sets what {verb} needs"


@pytest.mark.parametrize(("verb", "variable"), [(verb, variable) for verb in CALLS for variable in ATTACHMENT])
def test_each_verb_requires_only_its_own_variables(shim: Shim, agent: FakeAgent, verb: str, variable: str) -> None:
    """DEL comes without a netns after the sandbox was deleted. STATUS needs none of the variables."""
    result = shim.run_with({"CNI_COMMAND": verb} | {name: value for name, value in ATTACHMENT.items() if name != variable})
    if variable in NEEDED[verb]:
        assert re.findall(r"CNI_\w+", error_of(result)["msg"]) == [variable]
    else:
        assert result.returncode == 0
    assert len(agent.received) == (variable not in NEEDED[verb])


@pytest.mark.parametrize("command", ["add", "ADD ", "UPDATE", "ADD\n", 'A"D\\D', "\x01\x1f\x7f", "Ä€😀"])
def test_unknown_command_is_named(shim: Shim, command: str) -> None:
    """The JSON of the error can contain every value."""
    error = error_of(shim.run(command))
    assert error["code"] == 4
    assert command in error["msg"]
    assert all(verb in error["details"] for verb in NEEDED)


@given(st.binary(min_size=1, max_size=200).filter(lambda command: b"\0" not in command))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_gives_valid_json(shim: Shim, command: bytes) -> None:
    """UTF-8 is kept, and any other byte is printed as a number."""
    result = shim.run(os.fsdecode(command))
    error = error_of(result)
    shown = command.decode("utf-8", "surrogateescape")
    assert error["msg"].endswith("".join(chr(ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else c for c in shown))


def test_very_long_command_gives_valid_json(shim: Shim) -> None:
    """The message is cut to the size of the buffer."""
    assert error_of(shim.run("\x01" * 100_000))["code"] == 4


# VERSION


@pytest.mark.parametrize("version", VERSIONS)
def test_version_replies_in_the_requested_version(shim: Shim, version: str) -> None:
    """It needs neither an agent nor Python."""
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
    """The first value with 1 to 16 digits and dots counts."""
    assert version_of(shim.run_with({"CNI_COMMAND": "VERSION"}, stdin)) == version


@pytest.mark.parametrize("redirections", ["<&-", "</dev/null", "</dev/zero"])
def test_version_needs_no_stdin(shim: Shim, redirections: str) -> None:
    """Runtimes may send nothing. An endless input is not read to its end."""
    assert version_of(shim.run_in_shell(redirections, "VERSION")) == "1.1.0"


@pytest.mark.parametrize(("sent", "version"), [(b"", "1.1.0"), (b'{"cniVersion":"0.4.0"}', "0.4.0")])
def test_version_does_not_wait_for_an_idle_pipe(shim: Shim, sent: bytes, version: str) -> None:
    """Data that arrives within 50 ms counts."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as other_end:
        other_end.write(sent)
        assert version_of(shim.run_in_shell("", "VERSION", stdin=stdin)) == version


def test_version_does_not_wait_for_a_terminal(shim: Shim) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb"), os.fdopen(terminal, "rb") as stdin:
        assert version_of(shim.run_in_shell("", "VERSION", stdin=stdin)) == "1.1.0"
