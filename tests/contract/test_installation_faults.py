"""svcctl installation apply under faults: conflicts, lost replies, an API server that is away, kills at each write."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import kill_point
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import Site
from harness.installations import AGENT, FOUR, V4, V6, InstalledCluster, document, host_local, installed_cluster
from harness.kube import ADMIN_TOKEN, Kube
from svc.deploy.server_apply import ATTEMPTS

pytestmark = pytest.mark.server

Json = dict[str, Any]
BEFORE, WANTED = document({"ipPools": [V6]}), host_local({"ipPools": [V4]})
_IN_RECONCILE = "svc.admin.installation_resource.reconcile"
WRITES = {
    "resource": "svc.ctl.commands.installation:apply_documents",
    "pool removal": "svc.admin.operator_resource:_remove",
    "pools": f"{_IN_RECONCILE}:apply_pools",
    "network list": f"{_IN_RECONCILE}:_write_config_map",
    "first workload": f"{_IN_RECONCILE}:_apply",
    "status": "svc.admin.installation_resource.reconcile:write_status",
}
REQUESTS = {  # the writes of the Kubernetes API, as the proxy sees them
    "resource": "PATCH /apis/operator.*/installations/default",
    "network list": "PUT .*/configmaps/cni-config",
    "agent": f"PATCH .*/daemonsets/{AGENT[1]}",
    "status": "PUT .*/installations/default/status",
}


@pytest.fixture
def cluster(kube: Kube, site: Site, tmp_path: Path) -> Iterator[InstalledCluster]:
    """Return a cluster with another state than the wanted one."""
    with installed_cluster(kube, site, tmp_path) as made:
        made.make(*FOUR)
        made.call("apply", BEFORE)
        yield made


@pytest.fixture
def through(kube: Kube, cluster: InstalledCluster) -> Iterator[ApiProxy]:
    """Let the commands reach the API server through a proxy."""
    with ApiProxy(kube) as proxy:
        text = kube.kubeconfig(cluster.kubeconfig, ADMIN_TOKEN).read_text().replace(kube.url, proxy.url)
        cluster.kubeconfig.write_text(text)
        yield proxy


def assert_complete(cluster: InstalledCluster) -> None:
    """Check that one more call completes the wanted state, and that the next one changes nothing."""
    cluster.call("apply", WANTED)
    assert [spec["cidr"] for spec in cluster.pools().values()] == [V4["cidr"]]
    assert cluster.network()["ipam"]["type"] == "host-local"
    assert {each: cluster.environment(each).get("USE_POD_CIDR") for each in FOUR} == dict.fromkeys(FOUR, "true")
    revisions = cluster.revisions()
    cluster.call("apply", WANTED)
    assert cluster.revisions() == revisions


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", WRITES.values(), ids=WRITES)
def test_killed_command_is_completed_by_the_next(cluster: InstalledCluster, point: str, when: str) -> None:
    options = cluster.cli._options
    command = [sys.executable, kill_point.__file__, point, when, "svc.ctl.main", *options]
    killed = subprocess.run([*command, *cluster.arguments("apply", WANTED)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert_complete(cluster)


@pytest.mark.parametrize("name", REQUESTS)
def test_lost_reply_is_an_error_that_the_next_call_mends(cluster: InstalledCluster, through: ApiProxy, name: str) -> None:
    times = ATTEMPTS if name == "resource" else 1
    through.arm(Order(Fate.REPLY_LOST, REQUESTS[name], times=times))
    assert "the connection broke off" in cluster.call("apply", WANTED, code=1)
    assert_complete(cluster)


def test_lost_reply_to_the_resource_is_repeated(cluster: InstalledCluster, through: ApiProxy) -> None:
    """Its server-side apply has no effect the second time."""
    through.arm(order := Order(Fate.REPLY_LOST, REQUESTS["resource"], times=ATTEMPTS - 1))
    cluster.call("apply", WANTED)
    assert order.times == 0
    assert_complete(cluster)


@pytest.mark.parametrize("name", ["network list", "status"])
def test_conflict_is_tried_again(cluster: InstalledCluster, through: ApiProxy, name: str) -> None:
    body: Json = {"kind": "Status", "reason": "Conflict", "message": "changed", "code": 409}
    through.arm(Order(Fate.ANSWERED, REQUESTS[name], times=3, status=409, body=json.dumps(body).encode()))
    cluster.call("apply", WANTED)
    assert_complete(cluster)


def test_busy_server_is_tried_again(cluster: InstalledCluster, through: ApiProxy) -> None:
    through.arm(Order(Fate.ANSWERED, "configmaps/cni-config", times=2, status=429, headers={"Retry-After": "1"}))
    cluster.call("apply", WANTED)
    assert_complete(cluster)


def test_server_that_is_away_is_named_and_nothing_is_changed(cluster: InstalledCluster, through: ApiProxy) -> None:
    before = cluster.pools()
    for pattern, command in (("kubeadm-config", "apply"), ("kubeadm-config", "diff"), ("installations/default", "status")):
        through.arm(order := Order(Fate.NEVER_SENT, pattern, times=1000))
        found = cluster.call(command, WANTED, code=1)
        order.times = 0
        assert "does not answer" in found
    assert cluster.pools() == before
    assert_complete(cluster)
