"""Label selectors of the command line."""

import pytest

from svc.admin import label_selector
from svc.model.selector import SelectorError

LABELS = {"rack": "a", "env": "test", "has-gpu": "", "example.org/team": "web"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("rack=a", True),
        ("rack==a", True),
        ("rack = b", False),
        ("rack!=a", False),
        ("missing!=a", True),
        ("env in (test, dev)", True),
        ("env in (dev)", False),
        ("env notin (test,dev)", False),
        ("missing notin (test)", True),
        ("has-gpu", True),
        ("!has-gpu", False),
        ("! missing", True),
        ("rack=a,env in (test,dev),!missing,example.org/team=web", True),
        ("rack=a,env=dev", False),
        ("has-gpu=", True),
        ("rack=", False),
        ('rack == "a" && env in {"test"}', True),
        ("all()", True),
        ("!has(rack)", False),
        ("rack == 'b' || env == 'test'", True),
    ],
)
def test_both_forms_select_by_labels(text: str, matches: bool) -> None:
    """A missing label satisfies `!=` and `notin`, as in Kubernetes."""
    assert label_selector.parse(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    "text", ["", "  ", "rack=a,", "rack in a", "=a", "rack=a b", "rack in (a", 'rack = "a"', "a,,b", "rack>1"]
)
def test_wrong_parts_are_named(text: str) -> None:
    with pytest.raises(SelectorError, match="selector"):
        label_selector.parse(text)
