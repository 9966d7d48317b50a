"""Documents of a manifest that lack what upgrades need."""

from typing import Any

import pytest

from harness.upgrade_site import daemon_set
from svc.model.errors import CallerError
from svc.upgrade.bundle import Bundle

Json = dict[str, Any]

DEFINITION: Json = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a.b"}}


def workload(spec: Any) -> Json:
    return daemon_set("svc:1") | {"spec": spec}


@pytest.mark.parametrize(
    "document",
    [
        workload(None),
        workload({"template": {"spec": {"containers": []}}}),
        workload({"template": {"spec": {"containers": [{"name": "agent"}]}}}),
        workload({"template": {"spec": {"containers": [{"image": "svc:1"}]}}}),
        workload({"template": {"spec": {"containers": [{"name": "agent", "image": 1}]}}}),
        DEFINITION,
        DEFINITION | {"spec": {"group": "b", "names": {"kind": "A"}, "versions": [{}]}},
    ],
)
def test_incomplete_documents_are_refused(document: Json) -> None:
    with pytest.raises(CallerError, match="is not complete"):
        Bundle([document])


def test_complete_documents() -> None:
    versions = [{"name": "v1", "served": True}]
    definition = DEFINITION | {"spec": {"group": "b", "names": {"kind": "A"}, "versions": versions}}
    assert len(Bundle([daemon_set("svc:1"), definition]).documents) == 2
