"""How often a process that waits for etcd wakes up, and that changes are reported at once all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.etcd import cluster

pytestmark = pytest.mark.server

WATCHER = """
import sys, threading, time
from pathlib import Path
from svc.datastore.api import Create
from svc.datastore.etcd.sync_grpc import wake_up_every
from svc.datastore.etcd.store import EtcdStore
from svc.model.ipam import Handle
from svc.model.keys import HandleKey, HandleQuery
from svc.names import DEFAULT

endpoints, seconds = sys.argv[1], float(sys.argv[2])
store = EtcdStore({"kind": "etcdv3", "etcd_endpoints": endpoints}, DEFAULT)
if seconds:
    assert wake_up_every(seconds) == (True, True)
listed, heard = threading.Event(), threading.Event()

def follow():
    for event in store.watch(HandleQuery(), listed.set):
        heard.set()

threading.Thread(target=follow, daemon=True).start()
assert listed.wait(20)
time.sleep(1)

def switches():
    files = Path("/proc/self/task").glob("*/status")
    texts = [file.read_text() for file in files if file.with_name("comm").read_text().startswith("python")]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)

before = switches()
time.sleep(2)
waked = switches() - before
began = time.monotonic()
store.write([Create(HandleKey("h"), Handle({}))])
assert heard.wait(20)
late = time.monotonic() - began
began = time.monotonic()
store.close()
print(waked, late, time.monotonic() - began)
"""


def watched(folder: Path, seconds: float) -> list[float]:
    """Return the wake-ups in 2 seconds of rest, and the seconds until a change is reported and until the session is closed."""
    with cluster(folder) as server:
        command = [sys.executable, "-c", WATCHER, server.endpoints, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [float(word) for word in done.stdout.split()]


def test_waits_wake_up_seldom(tmp_path: Path) -> None:
    waked, reported, closed = watched(tmp_path, 10)
    assert waked < 10
    assert max(reported, closed) < 2


def test_waits_of_grpc_itself_wake_up_often(tmp_path: Path) -> None:
    """Otherwise nothing needs to be set any more."""
    waked, _, _ = watched(tmp_path, 0)
    assert waked > 20
