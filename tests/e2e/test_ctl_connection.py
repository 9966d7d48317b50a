"""`svcctl test`: the connection test of the executables, for the installed network."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harness.node import Node, netconf

pytestmark = pytest.mark.root


def run_test(node: Node, folder: Path, **changes: Any) -> tuple[int, list[str], str]:
    file = folder / "netconf.json"
    file.write_text(json.dumps(netconf(**changes)))
    done = node.svcctl("--netconf", str(file), "test", check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_reachable_datastore_passes(node: Node, tmp_path: Path) -> None:
    assert run_test(node, tmp_path) == (0, ["network configuration: ok", "datastore embedded: ok, ready"], "")


def test_locked_datastore_fails_with_its_cause(node: Node, tmp_path: Path) -> None:
    node.svcctl("clusterinfo", "lock")
    status, lines, _ = run_test(node, tmp_path)
    assert status == 1
    assert "the datastore is locked" in lines[-1]


def test_server_that_never_answers_fails_in_time(node: Node, tmp_path: Path) -> None:
    """The process ends although a thread still waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        status, lines, _ = run_test(node, tmp_path, datastore_type="etcdv3", etcd_endpoints=endpoint)
    assert (status, len(lines)) == (1, 2)
    assert "etcd" in lines[-1]
    assert time.monotonic() - began < 15


def test_interrupt_ends_the_test_at_once(node: Node, tmp_path: Path) -> None:
    """A thread still waits for a datastore that does not answer."""
    file = tmp_path / "netconf.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file.write_text(
            json.dumps(netconf(datastore_type="etcdv3", etcd_endpoints=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        )
        command = [str(node.programs / "svcctl"), "--state-dir", str(node.state_dir), "--netconf", str(file), "test"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            silent.settimeout(20)
            connection, _ = silent.accept()  # now it waits
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            process.communicate(timeout=20)
            connection.close()
    assert process.returncode == 130
    assert time.monotonic() - began < 1


def test_test_without_a_network_is_an_error_of_use(node: Node) -> None:
    done = node.svcctl("--embedded", "test", check=False)
    assert done.returncode == 2
    assert "name one with --netconf" in done.stderr
