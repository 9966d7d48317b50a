"""Names of etcd's servers are looked up as all others are: in /etc/hosts, too."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.etcd import Cluster

pytestmark = pytest.mark.root

_PROGRAM = """
import sys
from svc.datastore.api import NotFound
from svc.datastore.etcd.store import EtcdStore
from svc.model.keys import HandleKey
from svc.names import DEFAULT
store = EtcdStore({"kind": "etcdv3", "etcd_endpoints": sys.argv[1]}, DEFAULT)
try:
    store.get(HandleKey("nobody"))
except NotFound:
    print("answered")
store.close()
"""


def test_a_name_of_the_hosts_file_is_resolved(etcd: Cluster, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost etcd-of-this-test.example\n")
    url = f"http://etcd-of-this-test.example:{etcd.members[0].ports[0]}"
    script = 'mount --bind "$1" /etc/hosts && exec "$2" -c "$3" "$4"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(hosts), sys.executable, _PROGRAM, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "answered", done.stderr
