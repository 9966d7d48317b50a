"""svcctl ipam release on the node whose pod has the address, after its endpoint was lost."""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.enter_netns import entered
from harness.node import Node
from harness.pod import Pod
from harness.state import audit, remains, store_of
from svc.datastore.api import Delete
from svc.model.endpoint import KIND
from svc.model.keys import ResourceQuery

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
WEB = "K8S_POD_NAME=web;K8S_POD_NAMESPACE=default"


@pytest.fixture
def web(own_pods: MakePod, node: Node) -> Pod:
    """Return a live pod without an endpoint, so that the datastore shows its address as leaked."""
    pod = own_pods(args=WEB)
    pod.add()
    node.stop_agent()  # it would write the endpoint again
    with store_of(node) as store:
        store.write([Delete(entry.key, entry.revision) for entry in store.list(ResourceQuery(KIND))])
    return pod


def refusal(node: Node, pod: Pod, tmp_path: Path) -> str:
    """Return why the address of the pod is not released."""
    file = tmp_path / "netconf.json"
    file.write_text(json.dumps(pod.config))
    (address,) = pod.addresses
    command = [str(node.programs / "svcctl"), "--state-dir", str(node.state_dir), "--netconf", str(file)]
    with entered(node.netns):
        arguments = ("ipam", "release", "--ip", address, "--yes", "-o", "json")
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (outcome,) = json.loads(done.stdout)
    assert (outcome["object"], outcome["result"]) == (address, "refused")
    assert address in audit(node).allocations
    return str(outcome["reason"])


def test_address_of_an_attachment_is_not_released(web: Pod, node: Node, tmp_path: Path) -> None:
    said = refusal(node, web, tmp_path)
    assert said.startswith(f"attachment net.{web.container} of this node has it for pod default/web: end the container")
    _end(web, node)


def test_address_on_a_live_interface_is_not_released(web: Pod, node: Node, tmp_path: Path) -> None:
    """The journal has lost the attachment as well. The route to the interface is left."""
    with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()
    assert refusal(node, web, tmp_path).startswith(
        "a route of this node has it: `ip address` and `ip route` name the interface; "
    )
    _end(web, node)


def test_young_address_is_not_released(web: Pod, node: Node, tmp_path: Path) -> None:
    """Neither interface nor row nor endpoint is left. Its ADD may have been carried out by another process."""
    node.netns.ip("link", "delete", web.host_name)
    with closing(sqlite3.connect(node.state_dir / "journal.db")) as journal:
        journal.execute("DELETE FROM attachments")
        journal.commit()
    assert "less than a minute ago" in refusal(node, web, tmp_path)
    _end(web, node)


def _end(pod: Pod, node: Node) -> None:
    node.start_agent()
    pod.delete()
    assert remains(node) == []
