"""Fixes in errors about missing rights at the API server."""

import pytest

from svc.datastore.orch.client import ApiError
from svc.deploy.rbac import role
from svc.names import DEFAULT

ADMINISTRATOR, ROLE = "use the kubeconfig of an administrator", "svcctl crd role"


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        ("PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/ippools.crd.svc.internal", ADMINISTRATOR),
        ("POST /apis/crd.svc.internal/v1/ippools", ADMINISTRATOR),
        ("DELETE /apis/crd.svc.internal/v1/ipreservations/a", ADMINISTRATOR),
        ("PUT /apis/crd.svc.internal/v1/clusterinformations/default", ADMINISTRATOR),
        ("GET /apis/crd.svc.internal/v1/ippools", ROLE),
        ("POST /apis/crd.svc.internal/v1/ipamblocks", ROLE),
        ("DELETE /apis/crd.svc.internal/v1/hostendpoints/a", ADMINISTRATOR),
        ("PATCH /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/svc-cni", ADMINISTRATOR),
        ("GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/ippools.crd.svc.internal", ADMINISTRATOR),
        ("DELETE /api/v1/namespaces/ipamblocks", ADMINISTRATOR),
        ("DELETE /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a", ADMINISTRATOR),
        ("GET /api/v1/namespaces/ippools", ROLE),
        ("PATCH /api/v1/namespaces/default/pods/web-0/status", ROLE),
    ],
)
def test_fix_is_the_role_of_the_plugin_or_an_administrator(call: str, fix: str) -> None:
    """The role grants no right to change definitions, pools and settings."""
    assert fix in ApiError(403, "Forbidden", "no", call=call).details


def test_program_with_rights_of_its_own_names_them() -> None:
    for call in ("GET /apis/crd.svc.internal/v1/ippools", "POST /apis/crd.svc.internal/v1/hostendpoints"):
        assert ApiError(403, "Forbidden", "no", call=call, remedy="grant it to me").details == "grant it to me"


_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "delete": "DELETE",
    "patch": "PATCH",
}


@pytest.mark.parametrize("api_version", [DEFAULT.api_version, DEFAULT.crd_api_version])
def test_fix_is_the_role_for_each_of_its_rights(api_version: str) -> None:
    for rule in role(DEFAULT, api_version)["rules"]:
        group, (resource,) = rule["apiGroups"][0], rule["resources"]
        plural, _, part = resource.partition("/")
        path = f"/apis/{group}/v1" if group else "/api/v1"
        path += f"/namespaces/n/{plural}/a/{part}" if plural == "pods" else f"/{plural}/a"
        for verb in rule["verbs"]:
            assert ROLE in ApiError(403, "Forbidden", "no", call=f"{_METHODS[verb]} {path.rstrip('/')}").details
