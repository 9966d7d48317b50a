"""The rights that the manifests give, and the requests that a cluster makes with them."""

import pytest

from harness.audit_log import AuditLog, granted
from harness.fresh_cluster import IMAGE, FreshCluster
from harness.workloads import delete_pod, put_pod, read_pod
from svc.deploy import rbac
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import NETWORKING, NONE, ORCH, Settings
from svc.names import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.long]

RANGE = "10.244.0.0/16"


def use_everything(fresh: FreshCluster) -> None:
    """Attach and detach pods in each way that asks for more of the datastore."""
    kube, domain = fresh.kube, f"cni.{DEFAULT.api_version.partition('/')[0]}"
    put_pod(kube, "first")
    address = fresh.await_address("first")
    fresh.await_svc("svc-node", "svc-controllers")
    assert address.startswith("10.24")
    put_pod(kube, "chosen", {f"{domain}/ipAddrs": '["10.244.9.9"]'})
    assert fresh.await_address("chosen") == "10.244.9.9"
    for name in ("first", "chosen"):
        delete_pod(kube, name)
    fresh.real.wait("the pods have ended", lambda: not any(read_pod(kube, name) for name in ("first", "chosen")))
    update_svc(fresh)


def update_svc(fresh: FreshCluster) -> None:
    """Start the pods again in a cluster that has an older version, which they replace."""
    path = f"/apis/{DEFAULT.crd_api_version}/clusterinformations/default"
    own, field = fresh.kube.call("GET", path)["spec"], DEFAULT.version_field
    fresh.kube.call("PATCH", path, {"spec": {field: "v0.0.1"}}, "application/merge-patch+json")
    fresh.restart()
    fresh.real.wait("the version is that of svc", lambda: fresh.kube.call("GET", path)["spec"][field] == own[field])


def test_no_request_is_denied_and_the_installer_uses_each_right(fresh: FreshCluster) -> None:
    """Those of the controllers are compared in test_controllers_rights.py, with one controller after the other.

    Those of the plugin are for more than this cluster meets: damage, other nodes, full pools.
    """
    fresh.apply("--pool", RANGE)
    use_everything(fresh)
    log = AuditLog(fresh.kube.audit_log)
    rights = granted(objects(Settings(NETWORKING, ORCH, IMAGE, crds=NONE)))
    assert set(rights) == {rbac.plugin_account(DEFAULT), rbac.node_name(DEFAULT), DEFAULT.controllers}
    assert log.denied() == set()
    installer = rbac.node_name(DEFAULT)
    assert rights[installer] - log.used(installer, rights[installer]) == set()
    assert log.used(rbac.plugin_account(DEFAULT), rights[rbac.plugin_account(DEFAULT)])
