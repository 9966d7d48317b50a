"""svcctl: manifests, and everything that can be wrong with one."""

import json
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from svc.ctl import manifest
from svc.model.errors import CallerError
from svc.model.resource import Resource
from svc.names import DEFAULT

NOW = datetime(2026, 11, 20, 18, 2, 53, tzinfo=timezone.utc)


def document(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "svc.internal/v3",
        "kind": "IPPool",
        "metadata": {"name": "p"},
        "spec": {"cidr": "10.0.0.0/24"},
    } | changes


def read(text: str) -> list[Resource]:
    return manifest.read(text.encode(), "pools.yaml", DEFAULT.api_version, "IPPool")


def test_yaml_and_json_are_read() -> None:
    """Several documents, empty ones between them, and lists."""
    two = [document(metadata={"name": name}) for name in "ab"]
    for text in (yaml.safe_dump_all([two[0], None, two[1]]), json.dumps(two), yaml.safe_dump(two)):
        assert [resource.name for resource in read(text)] == ["a", "b"]
    assert [resource.name for resource in read(json.dumps(document()))] == ["p"]


def test_what_the_datastore_adds_is_passed_over() -> None:
    """What get prints can be applied."""
    metadata = {"name": "p", "uid": "u", "creationTimestamp": NOW, "resourceVersion": "1", "labels": {"a": "b"}}
    (resource,) = read(yaml.safe_dump(document(metadata=metadata, status={"conditions": []})))
    assert resource == Resource("IPPool", {"name": "p", "labels": {"a": "b"}}, {"cidr": "10.0.0.0/24"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (document(kind="Node"), "kind = 'Node' is not 'IPPool'"),
        (document(apiVersion="v1"), "apiVersion = 'v1' is not 'svc.internal/v3'"),
        ({"kind": "IPPool", "metadata": {"name": "p"}}, "apiVersion is missing"),
        (document(sepc={}), "sepc = {} is not known"),
        (document(metadata={"name": "p", "generateName": "x"}), "metadata.generateName = 'x' is not known"),
        (document(metadata={"name": "p", "labels": {"a": 1}}), "metadata.labels.a = 1 is a number"),
        (
            document(metadata={"name": "p", "annotations": ["a"]}),
            "metadata.annotations = ['a'] is an array",
        ),
        (document(metadata="p"), "metadata = 'p' is a string"),
        (document(spec=[1]), "spec = [1] is an array"),
        ("text", "document = 'text' is a string"),
        ([document(), 3], "document 2: document = 3 is a number"),
    ],
    ids=str,
)
def test_faults_are_named(given: object, message: str) -> None:
    """With the file, the place, the value and the remedy."""
    with pytest.raises(CallerError) as caught:
        read(yaml.safe_dump(given))
    assert str(caught.value).startswith("pools.yaml: ")
    assert message in str(caught.value)
    assert caught.value.details


@pytest.mark.parametrize(("text", "message"), [("a: [", "neither YAML nor JSON"), ("", "is empty"), ("---\n---\n", "is empty")])
def test_no_manifest_at_all_is_told(text: str, message: str) -> None:
    """One line, also for what the parser says in several."""
    with pytest.raises(CallerError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_binary_files_are_refused() -> None:
    """Whatever is in them."""
    with pytest.raises(CallerError, match="neither YAML nor JSON"):
        manifest.read(b"\xff\x00\x01", "x", DEFAULT.api_version, "IPPool")
