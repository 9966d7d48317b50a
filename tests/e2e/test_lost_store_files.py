"""Files beside the embedded store that another program removes while an agent has it open."""

from collections.abc import Callable

import pytest

from harness.netns import Netns
from harness.node import Node, netconf, pool_document
from harness.pod import Pod
from harness.polling import wait_until
from harness.state import disagreements, remains
from svc.datastore.open import EMBEDDED_FILE

pytestmark = pytest.mark.root


@pytest.mark.parametrize("suffixes", [("-wal",), ("-shm",), ("-wal", "-shm")], ids="".join)
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_content_survives_the_loss_of_files_beside_the_store(
    node: Node, sandbox: Callable[[], Netns], suffixes: tuple[str, ...], end: str
) -> None:
    """Neither the agent's allocations nor what svcctl writes afterwards is lost when the agent ends."""
    pods = [Pod(node, sandbox(), f"c{number}", netconf()) for number in range(3)]
    pods[0].add()
    for suffix in suffixes:
        (node.state_dir / f"{EMBEDDED_FILE}{suffix}").unlink()
    refusals = []

    def is_applied() -> bool:
        answer = node.svcctl("pool", "apply", "-f", "-", stdin=pool_document("later", "10.99.0.0/24"), check=False)
        refusals.append(answer.stderr)
        return answer.returncode == 0

    pods[1].add()
    wait_until(is_applied)
    assert all("was removed while process" in refusal for refusal in refusals[:-1])
    pods[2].add()
    assert disagreements(node) == []
    if end == "kill":
        node.kill_agent()
    else:
        node.stop_agent()
    node.start_agent()
    assert "10.99.0.0/24" in node.svcctl("get", "pools").stdout
    assert len({pod.addresses[0] for pod in pods}) == 3
    assert disagreements(node) == []
    for pod in pods:
        pod.delete()
    assert remains(node) == []
