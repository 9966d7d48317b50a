"""A token in the network configuration: svc sends it to the API server, and writes it to no log, error or file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, furnish
from harness.kube import ADMIN_TOKEN
from harness.netns import Netns
from harness.pod import Pod

pytestmark = pytest.mark.root

POD = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"


@pytest.fixture
def node(orch_site: OrchSite, tmp_path: Path) -> Iterator[ClusterNode]:
    furnish(orch_site, "node1")
    orch_site.add_pod("web-0")
    try:
        with ClusterNode(tmp_path / "node", "node1", orch_site) as node:
            yield node
    finally:
        orch_site.clear()


def with_token(site: OrchSite, token: str) -> dict[str, Any]:
    return {
        "orch": {"orch_api_root": site.kube.url},
        "policy": {"k8s_auth_token": token, "k8s_certificate_authority": str(site.kube.authority)},
    }


@pytest.fixture
def web(node: ClusterNode, orch_site: OrchSite, sandbox: Callable[[], Netns], tmp_path: Path) -> Pod:
    config = with_token(orch_site, ADMIN_TOKEN) | {"log_level": "DEBUG", "log_file_path": str(tmp_path / "cni.log")}
    return node.pod(sandbox(), args=POD, **config)


def files_with(directory: Path, text: str) -> list[Path]:
    """Return the regular files that contain the text."""
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_token_is_written_nowhere(node: ClusterNode, web: Pod, tmp_path: Path) -> None:
    web.add()
    called = [web.call("ADD"), web.check()]
    assert [each.status for each in called] == [0, 0], called
    assert "k8s_auth_token" not in (tmp_path / "cni.log").read_text()
    assert files_with(tmp_path, ADMIN_TOKEN) == []
    assert all(ADMIN_TOKEN not in each.stderr for each in called)
    web.delete()
    assert files_with(tmp_path, ADMIN_TOKEN) == []


def test_refused_token_is_not_in_the_error(node: ClusterNode, web: Pod, orch_site: OrchSite, tmp_path: Path) -> None:
    web.config |= with_token(orch_site, "stolen-token")
    called = web.failed("ADD")
    assert "stolen-token" not in f"{called.output} {called.stderr}"
    assert files_with(tmp_path, "stolen-token") == []


def test_token_of_a_call_is_used_for_earlier_attachments(node: ClusterNode, web: Pod) -> None:
    """The agent that serves the later calls did not serve the ADD, and the journal has no token."""
    web.add()
    node.kill_agent()
    node.start_agent()
    assert web.check().status == 0, web.check()
    web.delete()
    assert node.netns.links() == ["uplink"]


def test_newer_token_is_used_for_older_attachments(node: ClusterNode, web: Pod, orch_site: OrchSite) -> None:
    """With a revoked token the release stays pending until a call has a valid one."""
    web.add()
    good = dict(web.config)
    web.config |= with_token(orch_site, "taken-back")
    web.delete()
    node.kill_agent()
    node.start_agent()
    web.config = good
    web.delete()
    pod = orch_site.kube.call("GET", "/api/v1/namespaces/default/pods/web-0")
    assert pod["metadata"]["annotations"]["cni.svc.internal/podIP"] == ""
