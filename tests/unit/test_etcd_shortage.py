"""etcd connections in a process that cannot open any further file."""

import subprocess
import sys

import pytest

from svc.model.shortage import shortage_remedy

WITHOUT_DESCRIPTORS = """
import os, resource
from svc.datastore.etcd.connection import EtcdConnection
from svc.datastore.etcd.messages import rpc
from svc.datastore.etcd.settings import Cluster, Endpoint
cluster = Cluster((Endpoint("127.0.0.1", 1),), None, "a test", (), False)
connection = EtcdConnection(cluster, lambda: cluster)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
try:
    connection.range(rpc.RangeRequest(key=b"x"), 2)
except Exception as failure:
    os.write(1, f"{failure.code} {failure.details}".encode())
os._exit(0)
"""


def test_lack_of_descriptors_is_not_blamed_on_etcd() -> None:
    """The message of gRPC says that it cannot connect, and why."""
    child = subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, check=True)
    assert child.stdout == "106 the agent has too many files open: raise its limit (LimitNOFILE)"


@pytest.mark.parametrize(
    ("text", "part"),
    [("socket: Too many open files in system", "fs.file-max"), ("Too many open files", "LimitNOFILE"), ("refused", "")],
)
def test_remedy_of_a_text(text: str, part: str) -> None:
    """The text of one cause begins with that of the other."""
    assert (part in shortage_remedy(text)) if part else shortage_remedy(text) == ""
