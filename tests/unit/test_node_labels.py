"""The labels of a Node of the datastore, compared with an obvious twin."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.controllers.node.node_labels import with_labels
from svc.model.resource import Resource

NOTE = "svc.internal/kube-labels"
LABELS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy"))


def node(labels: Any, annotation: Any = None) -> Resource:
    notes = {"other": "kept"} | ({} if annotation is None else {NOTE: annotation})
    return Resource("Node", {"name": "n1", "uid": "u", "labels": labels, "annotations": notes}, {"bgp": {}})


@given(LABELS, LABELS, LABELS)
def test_labels_of_kubernetes_replace_those_that_were_copied(own: Any, first: Any, second: Any) -> None:
    """The twin: labels of others without those that Kubernetes has had, then what Kubernetes has."""
    made = with_labels(node(own), first, NOTE)
    assert made is not None
    assert made.labels == {**own, **first}
    again = with_labels(made, second, NOTE)
    if first == second:
        assert again is None
        return
    assert again is not None
    assert again.labels == {name: text for name, text in own.items() if name not in first} | second
    assert json.loads(again.metadata["annotations"][NOTE]) == second
    assert (again.name, again.metadata["uid"], again.metadata["annotations"]["other"]) == ("n1", "u", "kept")
    assert again.spec == {"bgp": {}}
    assert with_labels(again, second, NOTE) is None


def test_annotation_is_compact_and_sorted() -> None:
    made = with_labels(node({}), {"b": "1", "a": "2"}, NOTE)
    assert made is not None
    assert made.metadata["annotations"][NOTE] == '{"a":"2","b":"1"}'


@pytest.mark.parametrize("annotation", ["", "x", "[]", "1", "null"])
def test_malformed_annotation_counts_as_missing(annotation: str) -> None:
    made = with_labels(node({"a": "1"}, annotation), {"b": "2"}, NOTE)
    assert made is not None
    assert made.labels == {"a": "1", "b": "2"}
    assert json.loads(made.metadata["annotations"][NOTE]) == {"b": "2"}


def test_edited_label_is_reverted() -> None:
    made = with_labels(node({"a": "edited"}, '{"a":"1"}'), {"a": "1"}, NOTE)
    assert made is not None
    assert made.labels == {"a": "1"}
