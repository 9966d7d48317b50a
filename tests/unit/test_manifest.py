"""Manifests of svcctl, and their errors."""

import json
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from svc.admin import manifest
from svc.model.errors import CallerError
from svc.model.pool import TEXT_FIELDS
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
    """A manifest may have several documents, empty documents and lists."""
    two = [document(metadata={"name": name}) for name in "ab"]
    for text in (yaml.safe_dump_all([two[0], None, two[1]]), json.dumps(two), yaml.safe_dump(two)):
        assert [resource.name for resource in read(text)] == ["a", "b"]
    assert [resource.name for resource in read(json.dumps(document()))] == ["p"]


def test_fields_that_the_datastore_adds_are_ignored() -> None:
    """Therefore the output of `get` can be applied."""
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
        ([document(), 3], "[1] = 3 is a number"),
        ({"kind": "List", "items": [document(), document(kind="Node")]}, "items[1].kind = 'Node' is not 'IPPool'"),
        ({"kind": "List", "items": [{"kind": "List", "items": [3]}]}, "items[0].items[0] = 3 is a number"),
    ],
    ids=str,
)
def test_errors_name_file_field_and_value(given: object, message: str) -> None:
    """The details say how to correct the manifest."""
    with pytest.raises(CallerError) as caught:
        read(yaml.safe_dump(given))
    assert str(caught.value).startswith("pools.yaml: ")
    assert message in str(caught.value)
    assert caught.value.details


@pytest.mark.parametrize(("text", "message"), [("a: [", "neither YAML nor JSON"), ("", "is empty"), ("---\n---\n", "is empty")])
def test_text_that_is_not_a_manifest_is_refused(text: str, message: str) -> None:
    """The message has one line, even if the parser writes several."""
    with pytest.raises(CallerError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_binary_file_is_refused() -> None:
    with pytest.raises(CallerError, match="neither YAML nor JSON"):
        manifest.read(b"\xff\x00\x01", "x", DEFAULT.api_version, "IPPool")


HEAD = "apiVersion: svc.internal/v3\nkind: IPPool\n"
POOL = HEAD + "metadata: {name: p}\nspec: {cidr: 10.0.0.0/24}\n"


def refused(text: str) -> str:
    with pytest.raises(CallerError) as caught:
        manifest.read(text.encode(), "pools.yaml", DEFAULT.api_version, "IPPool", TEXT_FIELDS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2026-01-01", "a date"),
        ("2026-01-01T10:00:00Z", "a date"),
        ("010", "a number"),
        ("0x1F", "a number"),
        ("1_000", "a number"),
        ("12:30", "a number"),
        ("1.50", "a number"),
        ("yes", "a boolean"),
        ("Off", "a boolean"),
    ],
)
@pytest.mark.parametrize(
    "field", ["metadata.name", "metadata.labels.a", "metadata.annotations.a", "spec.cidr", "spec.nodeSelector"]
)
def test_text_without_quotes_is_shown_as_written(field: str, text: str, kind: str) -> None:
    """YAML converts such text to another type. The error says how to correct it."""
    section, _, name = field.partition(".")
    key, _, below = name.partition(".")
    value = f"{{{below}: {text}}}" if below else text
    message = refused(f"{HEAD}{section}: {{{key}: {value}}}\n")
    assert f"{field} = {text} is {kind}: {field} = {text}: put it in quotes" in message
    if field != "metadata.labels.a" or ":" not in text:  # no label has a colon
        assert len(read(f"{HEAD}{section}: {{{key}: {value.replace(text, repr(text))}}}\n")) == 1


def test_other_dates_and_types_are_shown_as_written() -> None:
    """No type of Python appears in an error."""
    assert "kind = 2026-01-01 is not 'IPPool'" in refused(POOL.replace("IPPool", "2026-01-01"))
    assert "spec.allowedUses[1] = 2026-13-45 is a date" in refused(
        POOL.replace("spec: {", "spec: {allowedUses: [Tunnel, 2026-13-45], ")
    )
    assert "metadata.name = ~ is null" in refused(POOL.replace("name: p", "name: ~"))
    assert "metadata.annotations key = 1 is a number" in refused(POOL.replace("name: p", "name: p, annotations: {1: a}"))
    assert "line 3 has a value of type 'tag:yaml.org,2002:binary'" in refused(POOL.replace("name: p", "name: !!binary YQ=="))
    assert "metadata.labels.a = 'ü b' is not a label value" in refused(POOL.replace("name: p", "name: p, labels: {a: ü b}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POOL.replace("spec:", "kind: Node\nspec:"), "key 'kind' is given twice, in lines 2 and 4"),
        (
            POOL.replace("{cidr: 10.0.0.0/24}", "\n  cidr: 10.0.0.0/24\n  cidr: 10.1.0.0/24"),
            "key 'cidr' is given twice, in lines 5 and 6",
        ),
        (json.dumps(document()).replace('"kind"', '"kind": "Node", "kind"'), "key 'kind' is given twice, in line 1"),
    ],
)
def test_repeated_keys_are_refused(text: str, message: str) -> None:
    """It is unknown which of the values is meant."""
    assert message in refused(text)


def test_merged_keys_are_replaced() -> None:
    """In YAML, a key of the mapping itself overrides a merged one."""
    text = f"{HEAD}metadata: {{<<: &other {{name: q}}, name: r}}\n"
    assert [resource.name for resource in read(text)] == ["r"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "List"}, "items is missing: items: a List has its resources there"),
        ({"kind": "List", "items": 5}, "items = 5 is a number: items = 5: give an array of objects of kind IPPool"),
        ({"kind": "List", "items": {}}, "items = {} is an object"),
        ({"kind": "List", "items": None}, "is empty: give at least one IPPool"),
        ({"kind": "List", "items": [{"kind": "IPPoolList"}]}, "items[0].items is missing"),
    ],
)
def test_lists_have_items(given: object, message: str) -> None:
    assert message in refused(yaml.safe_dump(given))


def test_lists_may_be_nested() -> None:
    inner = {"kind": "IPPoolList", "items": [document(metadata={"name": name}) for name in "ab"]}
    outer = {"kind": "List", "items": [inner, document(metadata={"name": "c"})]}
    assert [resource.name for resource in read(json.dumps(outer))] == ["a", "b", "c"]
