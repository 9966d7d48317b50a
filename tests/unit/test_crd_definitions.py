"""Definitions of custom resources and the role: the requirements of API servers since 1.20, with any names."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from svc.deploy.crds import definitions
from svc.deploy.rbac import binding, role
from svc.names import DEFAULT

Json = dict[str, Any]

OTHER = replace(DEFAULT, plugin="net", api_version="net.example/v3", crd_api_version="crd.net.example/v1")
GROUPS = [(names, version) for names in (DEFAULT, OTHER) for version in (names.crd_api_version, names.api_version)]
EVERY_GROUP = pytest.mark.parametrize(("names", "version"), GROUPS, ids=[version for _, version in GROUPS])


def nodes(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Return every schema inside a schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from nodes(schema[name], f"{path}.{name}")


def schema_of(definition: Json) -> Json:
    found: Json = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@EVERY_GROUP
def test_schemas_are_structural(names: Any, version: str) -> None:
    """Every schema has a type, required fields exist, and no rule uses a language that Kubernetes 1.20 lacks."""
    for definition in definitions(names, version):
        for path, schema in nodes(schema_of(definition)):
            assert "type" in schema, path
            assert set(schema.get("required", ())) <= set(schema.get("properties", {})), path
            assert "x-kubernetes-validations" not in schema


@EVERY_GROUP
def test_definitions_follow_the_names(names: Any, version: str) -> None:
    """Each kind has one definition, which is cluster-wide and has the name that the API server requires."""
    group, _, number = version.partition("/")
    found = definitions(names, version)
    config = "ipamconfigs" if version == names.crd_api_version else "ipamconfigurations"
    plurals = {definition["spec"]["names"]["plural"] for definition in found}
    assert {
        "ipamblocks",
        "blockaffinities",
        "ipamhandles",
        "ippools",
        "ipreservations",
        "clusterinformations",
        config,
    } <= plurals
    for definition in found:
        spec = definition["spec"]
        assert definition["metadata"]["name"] == f"{spec['names']['plural']}.{group}"
        assert (spec["group"], spec["versions"][0]["name"], spec["scope"]) == (group, number, "Cluster")


def test_only_the_backing_group_stores_a_deletion_mark_as_text() -> None:
    """Other programs of each group write the same type."""
    marks = []
    for version in (DEFAULT.crd_api_version, DEFAULT.api_version):
        (affinity,) = (item for item in definitions(DEFAULT, version) if item["spec"]["names"]["kind"] == "BlockAffinity")
        marks.append(schema_of(affinity)["properties"]["spec"]["properties"]["deleted"]["type"])
    assert marks == ["string", "boolean"]


def test_role_has_the_group_and_names_of_the_deployment() -> None:
    """The binding has the subject that the administrator gives."""
    wanted = role(OTHER, OTHER.api_version)
    assert wanted["metadata"]["name"] == "net-cni"
    assert {rule["apiGroups"][0] for rule in wanted["rules"]} == {"", "coordination.k8s.io", "net.example"}
    assert "ipamconfigurations" in {rule["resources"][0] for rule in wanted["rules"]}
    subject = {"kind": "ServiceAccount", "name": "net", "namespace": "kube-system"}
    assert binding(OTHER, subject)["subjects"] == [subject]
    assert binding(OTHER, subject)["roleRef"]["name"] == "net-cni"
