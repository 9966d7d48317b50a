"""Execution of other plugins: search, environment, versions, results and errors."""

import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from harness.skips import ONE_PROCESSOR
from svc.attach import plugin_exec
from svc.attach.plugin_exec import find, run_plugin, supported_versions
from svc.call_trace import CallTrace
from svc.cpu_pinning import CPU_PINNING
from svc.model.errors import Code, PeerError, PluginError
from svc.model.result import IpConfig, Result

VERSIONS = '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}'
NETCONF = {"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "host-local"}}

Make = Callable[..., dict[str, str]]


@pytest.fixture
def plugin(tmp_path: Path) -> Make:
    """Return a function that writes a plugin with this answer to all verbs but VERSION, and returns its environment."""

    def make(answer: str, versions: str = f"echo '{VERSIONS}'") -> dict[str, str]:
        path = tmp_path / "host-local"
        path.write_text(f"#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && {{ {versions}; exit; }}\n{answer}\n")
        path.chmod(0o755)
        return {"CNI_PATH": str(tmp_path), "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}

    return make


def call(
    environment: dict[str, str], verb: str = "ADD", version: str = "1.0.0", trace: CallTrace | None = None
) -> Result | None:
    return run_plugin("host-local", verb, NETCONF | {"cniVersion": version}, environment, trace or CallTrace("test"))


def failure(environment: dict[str, str], verb: str = "ADD") -> PeerError:
    with pytest.raises(PeerError) as caught:
        call(environment, verb)
    return caught.value


# search


def test_first_directory_with_the_plugin_counts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "host-local").touch()
    assert find("host-local", f"{tmp_path}/none::{tmp_path}/b:{tmp_path}/a") == tmp_path / "b" / "host-local"


@pytest.mark.parametrize("path", ["", "/nonexistent", "/proc"])
def test_error_of_a_missing_plugin_has_the_search_path(path: str) -> None:
    error = failure({"CNI_PATH": path})
    assert (error.code, error.msg) == (Code.DELEGATE, f"plugin 'host-local' is not in CNI_PATH ({path})")
    assert "containernetworking-plugins" in error.details


def test_directory_with_its_name_is_not_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "host-local").mkdir()
    assert "is not in CNI_PATH" in failure({"CNI_PATH": str(tmp_path)}).msg


def test_error_names_a_file_that_cannot_be_executed(plugin: Make, tmp_path: Path) -> None:
    environment = plugin("true")
    (tmp_path / "host-local").chmod(stat.S_IRUSR)
    error = failure(environment)
    assert "plugin 'host-local' cannot be executed" in error.msg
    assert str(tmp_path / "host-local") in error.details


# calls


def test_environment_is_that_of_the_call(plugin: Make, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    environment = plugin(f"env >{seen}") | {"CNI_ARGS": "K8S_POD_NAME=a", "CNI_COMMAND": "ADD"}
    call(environment, "DEL")
    variables = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    assert {name: variables[name] for name in environment} == environment | {
        "CNI_COMMAND": "DEL", "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=a",
    }  # fmt: skip
    assert variables["PATH"] == os.environ["PATH"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=ONE_PROCESSOR)
def test_plugin_is_not_pinned_to_a_cpu(plugin: Make, tmp_path: Path) -> None:
    """It may run on any CPU, even while concurrent calls are pinned to one."""
    seen = tmp_path / "seen"
    environment = plugin(f"grep ^Cpus_allowed: /proc/self/status >>{seen}")

    def call_concurrently() -> None:
        call(environment, "DEL")
        CPU_PINNING.call_begins(concurrent=True)
        call(environment, "DEL")

    try:
        with ThreadPoolExecutor() as worker:
            worker.submit(call_concurrently).result()
    finally:
        CPU_PINNING.unpin()
    alone, concurrent = seen.read_text().splitlines()
    assert concurrent == alone


@pytest.mark.parametrize(
    ("verb", "wanted", "sent"),
    [("DEL", "1.0.0", "1.0.0"), ("DEL", "1.1.0", "1.0.0"), ("DEL", "0.3.1", "0.3.1"), ("CHECK", "0.3.1", "0.4.0")],
)
def test_newest_common_version_is_sent(plugin: Make, tmp_path: Path, verb: str, wanted: str, sent: str) -> None:
    """It is not newer than that of the network, unless the verb requires a newer one."""
    seen = tmp_path / "seen"
    call(plugin(f"cat >{seen}"), verb, wanted)
    assert orjson.loads(seen.read_bytes()) == NETCONF | {"cniVersion": sent}


@pytest.mark.parametrize("verb", ["GC", "STATUS"])
def test_verb_that_the_plugin_does_not_support_is_not_sent(plugin: Make, verb: str) -> None:
    assert call(plugin("exit 1"), verb, "1.1.0") is None


def test_plugin_without_a_common_version_reports_the_error_itself(plugin: Make) -> None:
    environment = plugin("""echo '{"code":1,"msg":"incompatible"}'; exit 1""", """echo '{"supportedVersions":["9.0.0"]}'""")
    assert failure(environment).code == Code.INCOMPATIBLE_VERSION


@pytest.mark.parametrize("answer", ["true", "echo no", "echo '{}'", "echo '[]'", "echo '{\"supportedVersions\":5}'"])
def test_plugin_that_does_not_report_its_versions_is_refused(plugin: Make, answer: str) -> None:
    assert "does not tell its versions" in failure(plugin("true", answer)).msg


def test_versions_of_a_replaced_plugin_are_read_again(plugin: Make, tmp_path: Path) -> None:
    plugin("true")
    assert "1.1.0" not in supported_versions(tmp_path / "host-local")
    plugin("true # newer", """echo '{"supportedVersions":["1.0.0","1.1.0"]}'""")
    assert "1.1.0" in supported_versions(tmp_path / "host-local")


# answers


def test_result_is_read_in_its_own_version(plugin: Make) -> None:
    environment = plugin("""echo '{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}'""")
    assert call(environment, version="1.1.0") == Result(ips=(IpConfig("10.1.0.2/24"),))


@pytest.mark.parametrize("answer", ["true", "echo no", "echo []", """echo '{"cniVersion":"1.0.0","ips":[{"address":"x"}]}'"""])
def test_invalid_result_is_an_error_of_the_plugin(plugin: Make, answer: str) -> None:
    error = failure(plugin(answer))
    assert error.code == Code.DELEGATE
    assert "result of host-local" in error.msg


@pytest.mark.parametrize(
    ("answer", "code", "msg", "details"),
    [
        ('{"code":999,"msg":"no room","details":"at all"}', 999, "host-local: no room", "at all"),
        ('{"code":11,"msg":"host-local: busy"}', 11, "host-local: busy", ""),
    ],
)
def test_error_is_passed_on_once(plugin: Make, answer: str, code: int, msg: str, details: str) -> None:
    error = failure(plugin(f"echo '{answer}'; exit 1"))
    assert isinstance(error, PluginError)
    assert (error.code, error.msg, error.details) == (code, msg, details)


@pytest.mark.parametrize(
    ("answer", "how", "details"),
    [
        ("echo one >&2; echo two >&2; exit 3", "exited with status 3", "two"),
        ('echo \'{"code":"x"}\'; exit 1', "exited with status 1", "it said nothing: see the kernel's log"),
        ("kill -9 $$", "was ended by signal 9", "it said nothing: see the kernel's log"),
    ],
)
def test_end_without_an_error_object_is_reported(plugin: Make, answer: str, how: str, details: str) -> None:
    error = failure(plugin(answer))
    assert (error.code, error.msg) == (Code.DELEGATE, f"plugin 'host-local' {how} without an error object")
    assert error.details == details
    assert not isinstance(error, PluginError)


@pytest.mark.parametrize(("end", "level"), [(0, "INFO"), (1, "WARNING")])
def test_stderr_of_the_plugin_is_logged(plugin: Make, end: int, level: str) -> None:
    trace = CallTrace("test")
    environment = plugin(f"echo hello >&2; printf '\\377\\n' >&2; echo '{{}}'; exit {end}")
    if end:
        with pytest.raises(PeerError):
            call(environment, "DEL", trace=trace)
    else:
        call(environment, "DEL", trace=trace)
    assert [line.partition(f"{level} [test] ")[2] for line in trace.lines] == ["host-local: hello\n", "host-local: \\xff\n"]


def test_plugin_that_does_not_answer_is_ended(plugin: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_exec, "LIMIT_SECONDS", 0.2)
    error = failure(plugin(f"echo $$ >{tmp_path}/pid; exec sleep 60"))
    assert "has not answered within 0.2 s" in error.msg
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
