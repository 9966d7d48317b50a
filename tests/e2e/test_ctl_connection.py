"""`svcctl test`: the connection test of the executables, for the installed network."""

import json
import socket
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


def test_test_without_a_network_is_an_error_of_use(node: Node) -> None:
    done = node.svcctl("--embedded", "test", check=False)
    assert done.returncode == 2
    assert "name one with --netconf" in done.stderr
