"""Labels that Mesos passes for a container."""

from typing import Any

import pytest

from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors
from svc.names import DEFAULT
from svc.netconf.args import Labels, labels_of


def args(*labels: Any) -> dict[str, Any]:
    return {"org.apache.mesos": {"network_info": {"name": "net", "labels": {"labels": list(labels)}}}}


def label(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}


def read(given: dict[str, Any] | None) -> tuple[str, Labels]:
    errors = FieldErrors("test", Code.INVALID_NETCONF)
    found = labels_of(given, DEFAULT, errors)
    errors.raise_if_any()
    return found


def test_labels_are_read() -> None:
    assert read(args(label("tier", "web"), label("app", "shop"))) == ("", (("app", "shop"), ("tier", "web")))


def test_characters_that_selectors_do_not_permit_are_replaced() -> None:
    """A label whose key is empty afterwards is ignored."""
    assert read(args(label("a b/c", " x:y "), label("///", "z"))) == ("", (("a-b.c", "x-y"),))


@pytest.mark.parametrize(
    ("given", "label_value"),
    [("k", "k"), ("-my-val", "my-val"), ("$my..val", "my.val"), ("m$y.val", "m-y.val"), ("//my/val/", "my.val"),
     ("a-.-b", "a.b"), ("_a_", "_a_"), ("a--b", "a--b"), ("some_val.lots*of^weird#chars", "some_val.lots-of-weird-chars")],
)  # fmt: skip
def test_values_are_sanitised(given: str, label_value: str) -> None:
    assert read(args(label("k", given))) == ("", (("k", label_value),))


def test_namespace_comes_from_its_own_label() -> None:
    assert read(args(label("svc.internal/namespace", "blue"), label("a", "b"))) == ("blue", (("a", "b"),))


@pytest.mark.parametrize("given", [None, {}, {"cni": {}}, {"org.apache.mesos": {}}, {"org.apache.mesos": {"network_info": 1}}])
def test_other_arguments_are_ignored(given: dict[str, Any] | None) -> None:
    assert read(given) == ("", ())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"], r"labels\[0\] = 'a' is not a label"),
        ([label("a", "b"), {"key": "a"}], r"labels\[1\] = .* is not a label"),
        ([{"key": 1, "value": "b"}], "is not a label"),
        ([label("svc.internal/namespace", "a/b")], "'a/b' is not a namespace"),
    ],
)
def test_invalid_labels_are_refused(labels: list[Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        read(args(*labels))


def test_labels_that_are_not_an_array_are_refused() -> None:
    with pytest.raises(CallerError, match="is an object"):
        read({"org.apache.mesos": {"network_info": {"labels": {"labels": {}}}}})
