"""What a refusal of the API server tells the user to do."""

import pytest

from svc.datastore.orch.client import ApiError

ADMINISTRATOR, ROLE = "use the kubeconfig of an administrator", "svcctl crd role"


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        ("PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/ippools.crd.svc.internal", ADMINISTRATOR),
        ("POST /apis/crd.svc.internal/v1/ippools", ADMINISTRATOR),
        ("DELETE /apis/crd.svc.internal/v1/ipreservations/a", ADMINISTRATOR),
        ("PUT /apis/crd.svc.internal/v1/clusterinformations/default", ADMINISTRATOR),
        ("GET /apis/crd.svc.internal/v1/ippools", ROLE),
        ("POST /apis/crd.svc.internal/v1/ipamblocks", ROLE),
        ("GET /api/v1/namespaces/ippools", ROLE),
        ("PATCH /api/v1/namespaces/default/pods/web-0/status", ROLE),
    ],
)
def test_missing_rights_are_those_of_the_plugin_or_of_an_administrator(call: str, remedy: str) -> None:
    """The role grants no right to change definitions, pools and settings."""
    assert remedy in ApiError(403, "Forbidden", "no", call=call).details
