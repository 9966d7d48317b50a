"""svcctl diag: complete if agent and datastore are down, in time, and without a secret."""

import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.gate_server import serving, silent
from harness.node import BIN, Node, netconf
from harness.pod import Pod
from harness.stopped import stopped
from svc.admin import diagnostics

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

BARE = ("--without", "portmap", "--without", "bandwidth")
SECRET = "hunter2correcthorse"
LIMIT_SECONDS = 15.0
LIMIT_BYTES = 20 << 20
PEM = "-----BEGIN EC PRIVATE KEY-----\n" + "MHcCAQEEIHunter2" * 8 + "\n-----END EC PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.aHVudGVyMmNvcnJlY3Q"
LOGGED = [  # as a server's messages may have them
    f"Authorization: Bearer {SECRET}", f"Authorization: Basic {SECRET}=", f"Cookie: session={SECRET}",
    f"X-Auth-Token: {SECRET}",
    f'{{"token": "{SECRET}"}}',
    f'{{"config": "{{\\"password\\": \\"{SECRET}\\"}}"}}', f"passphrase: correct {SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}", f"--client-secret {SECRET}", f"--api-key={SECRET}", f"http://u:{SECRET}@h/",
    f"http://h/x?key={SECRET}", f"http://h/x#{SECRET}", JWT, "AKIAHUNTER2CORRECT22", f"ghp_{SECRET}", "hunter.2correcthorse000",
    f"$6$salt${SECRET}", "hunter2CorrectHorseBatteryStaple0123456789A=", f"client-key-data: {SECRET}", PEM,
]  # fmt: skip
REMAINS = ("hunter2", "HUNTER2", "Hunter2", "aHVudGVyMm", "hunter.2c")


def diag(node: Node, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `svcctl diag`, which must end in time."""
    began = time.monotonic()
    command = [str(BIN / "svcctl"), "--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert time.monotonic() - began < LIMIT_SECONDS
    return done


def parts_of(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {Path(member.name).stem: read(archive, member) for member in archive.getmembers()}


def read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = archive.extractfile(member)
    assert content is not None
    return content.read().decode()


def test_bundle_has_every_part(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    pod = own_pods(container="c1")
    pod.add()
    file = tmp_path / "node1.tar.gz"
    done = diag(node, "diag", "--bundle", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o600
    parts = parts_of(file)
    assert {"versions", "status", "datastore", "installations", "agent-process", "links", "routes4", "rules6"} <= set(parts)
    assert json.loads(parts["status"])["verdict"] == "good"
    assert json.loads(parts["agent-state"])["agent"]["pid"] == node.agent_pid
    assert json.loads(parts["agent-calls"])["calls"][0]["container"] == "c1"
    assert pod.addresses[0] in parts["journal"]
    assert "worker-1" in parts["agent-threads"]
    assert f"/proc/{node.agent_pid}/status" in parts["agent-process"]
    assert [name for name, text in parts.items() if text.startswith("not available")] == []
    again = diag(node, "diag", "--bundle", str(file))
    assert (again.returncode, "exists: name a new one" in again.stderr) == (1, True)
    nameless = diag(node, "diag", "--bundle", "-")
    assert (nameless.returncode, "--bundle '-' is not the name of a file" in nameless.stderr) == (1, True)


def test_configuration_of_the_agent_is_a_part(node: Node, tmp_path: Path) -> None:
    """An output without its characters gets escapes for them."""
    config = tmp_path / "agent.toml"
    config.write_text('log_level = "DEBUG"  # \u4f60\n')
    node.stop_agent()
    node.start_agent(str(BIN / "svc-agent"), options=("--config", str(config)))
    done = diag(node, "diag", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert f'==== agent-config ====\n{config}\nlog_level = "DEBUG"  # \\u4f60\n' in done.stdout
    assert f"--config {config}" in done.stdout


def test_report_without_an_archive_is_text(node: Node) -> None:
    done = diag(node, "diag")
    headings = [line for line in done.stdout.splitlines() if line.startswith("==== ")]
    assert (done.returncode, headings[0]) == (0, "==== versions ====")
    assert len(headings) > 15


def test_everything_down_leaves_the_other_parts(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    """The agent is stopped, and the datastore accepts connections without ever answering."""
    pod = own_pods(container="c1")
    pod.add()
    file, config = tmp_path / "down.tar.gz", tmp_path / "netconf.json"
    with stopped(node.agent_pid), serving(silent) as server:
        config.write_text(json.dumps(netconf(datastore_type="etcdv3", etcd_endpoints=f"http://127.0.0.1:{server.port}")))
        done = diag(node, "--netconf", str(config), "diag", "--bundle", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    parts = parts_of(file)
    assert json.loads(parts["status"])["verdict"] == "down"
    assert parts["datastore"].startswith("not available: ")
    assert "which is stopped" in parts["agent-state"]
    assert "State:\tT" in parts["agent-process"]
    assert pod.addresses[0] in parts["journal"]
    assert "lo:" in parts["links"]


def test_no_secret_remains(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    """Twenty-one kinds are in the log of a network, others in its configuration, calls, journal and datastore settings."""
    log = tmp_path / "net.log"
    log.write_text("".join(f"{line}\n" for line in LOGGED))
    assert len(LOGGED) >= 20
    network = {
        "cniVersion": "1.0.0", "name": "net",
        "plugins": [
            netconf(
                log_file_path=str(log), datastore_type="etcdv3", nodename="node1",
                etcd_endpoints="http://127.0.0.1:2",
                readiness_gates=[f"http://127.0.0.1:1/ready?key={SECRET}"], args={"token": SECRET},
            )
        ],
    }  # fmt: skip
    source = tmp_path / "net.conflist"
    source.write_text(json.dumps(network))
    node.svcctl(
        "install", "--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "conf"), "--netconf", str(source),
        "--socket", str(node.socket), *BARE,
    )  # fmt: skip
    (installed,) = (tmp_path / "conf").glob("*.conflist")
    with_user = f"http://root:{SECRET}@127.0.0.1:2"  # which an installation refuses
    installed.write_text(installed.read_text().replace("http://127.0.0.1:2", with_user))
    config = network["plugins"][0] | {"name": "net", "cniVersion": "1.0.0", "etcd_endpoints": with_user}  # type: ignore[operator]
    pod = own_pods(container="c1", args=f"IgnoreUnknown=1;PASSWORD={SECRET}")
    assert pod.call("ADD", **config).status
    file = tmp_path / "secret.tar.gz"
    assert diag(node, "diag", "--bundle", str(file)).returncode == 0
    parts = parts_of(file)
    assert log.name in "".join(parts) or any(str(log) in text for text in parts.values())
    assert {name: word for name, text in parts.items() for word in REMAINS if word in text} == {}


def test_large_logs_are_cut(own_pods: MakePod, node: Node, tmp_path: Path) -> None:
    log = tmp_path / "net.log"
    log.write_text("2026-11-23 12:00:00.000 INFO [0a] verb=ADD container=c1 ok\n" * 1_000_000)
    source = tmp_path / "net.conflist"
    source.write_text(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [netconf(log_file_path=str(log))]}))
    node.svcctl("install", "--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "conf"), "--netconf", str(source),
                "--socket", str(node.socket), *BARE)  # fmt: skip
    file = tmp_path / "large.tar.gz"
    assert diag(node, "diag", "--bundle", str(file)).returncode == 0
    sizes = {name: len(text) for name, text in parts_of(file).items()}
    assert sizes["network-0-log"] <= diagnostics.PART_BYTES + 200
    assert sum(sizes.values()) < LIMIT_BYTES
