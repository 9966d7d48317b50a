"""Placeholders in network configurations, and the name of the node in one that all nodes share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from svc.admin.installation import Installation
from svc.admin.netconf_tokens import VARIABLES, with_values
from svc.model.errors import CallerError
from svc.names import DEFAULT

ENVIRONMENT = {"KUBERNETES_NODE_NAME": "node1", "ETCD_ENDPOINTS": "http://a:2379"}


def test_placeholders_are_replaced_wherever_they_are() -> None:
    """In texts of objects and lists, also inside longer texts. Other values stay."""
    document = {
        "a": "__KUBERNETES_NODE_NAME__",
        "b": ["x-__KUBERNETES_NODE_NAME__", 1, None, True],
        "c": {"d": "__ETCD_ENDPOINTS__"},
    }
    wanted = {"a": "node1", "b": ["x-node1", 1, None, True], "c": {"d": "http://a:2379"}}
    assert with_values(document, ENVIRONMENT, "file") == wanted
    assert with_values("__init__ _a_ ____", {}, "file") == "__init__ _a_ ____"


@pytest.mark.parametrize(
    ("text", "environment", "error", "remedy"),
    [
        ("__NODE__", ENVIRONMENT, "file: placeholder __NODE__ is not known", "__KUBERNETES_NODE_NAME__"),
        ("__CNI_MTU__", ENVIRONMENT, "file: placeholder __CNI_MTU__ has no value", "set the variable CNI_MTU"),
        ("__CNI_MTU__", {"CNI_MTU": ""}, "file: placeholder __CNI_MTU__ has no value", "set the variable CNI_MTU"),
    ],
)
def test_placeholder_without_a_value_is_refused(text: str, environment: dict[str, str], error: str, remedy: str) -> None:
    with pytest.raises(CallerError) as refusal:
        with_values({"a": [text]}, environment, "file")
    assert refusal.value.msg == error
    assert remedy in refusal.value.details


def test_list_of_variables_has_that_of_the_manifests() -> None:
    assert "KUBERNETES_NODE_NAME" in VARIABLES


@pytest.mark.parametrize(
    ("given", "variable", "node"),
    [
        ({}, "node1", "node1"),
        ({}, "", None),
        ({"nodename": "own"}, "node1", "own"),
        ({"nodename": "__KUBERNETES_NODE_NAME__"}, "node1", "node1"),
    ],
)
def test_node_is_named_by_its_pod(
    given: dict[str, Any], variable: str, node: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network list that names no node gets the name that Kubernetes gives to the pod of the installer."""
    monkeypatch.setenv("KUBERNETES_NODE_NAME", variable)
    file = tmp_path / "config"
    entry = {"type": "svc", "datastore_type": "etcdv3", "etcd_endpoints": "http://a:2379", "ipam": {"type": "svc-ipam"}}
    file.write_text(json.dumps({"name": "pods", "plugins": [entry | given]}))
    found, _ = replace(INSTALLATION, netconf=file).read_netconf(tmp_path)
    assert found.get("nodename") == node


INSTALLATION = Installation(
    names=DEFAULT, profile="", state_dir=Path("/a"), run_dir=Path("/b"), bin_dir=Path("/c"), conf_dir=Path("/d"),
    host_conf_dir=None, unit_dir=None, datastore="embedded", netconf=None, installation=None, without=(), cni_version=None,
    service_account=None, socket=None, executable=None, systemd=False,
)  # fmt: skip
