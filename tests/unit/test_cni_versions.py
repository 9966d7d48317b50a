"""CNI versions: which ones svc supports, how they compare, and which verbs they allow."""

from typing import Any

import pytest

from svc.model import cni_versions
from svc.model.errors import CallerError, Code


@pytest.mark.parametrize("text", cni_versions.SUPPORTED)
def test_every_supported_version_is_accepted(text: str) -> None:
    assert cni_versions.negotiate(text) == text


@pytest.mark.parametrize("text", [None, ""])
def test_missing_version_means_the_first(text: str | None) -> None:
    """CNI 0.1.0 has no field for the version."""
    assert cni_versions.negotiate(text) == "0.1.0"


@pytest.mark.parametrize("text", ["0.3.2", "1.1.1", "2.0.0", "1.0", "1.0.0 ", "v1.0.0", "x", "\udc80"])
def test_error_about_an_unknown_version_lists_the_supported_versions(text: str) -> None:
    with pytest.raises(CallerError) as caught:
        cni_versions.negotiate(text)
    assert caught.value.code is Code.INCOMPATIBLE_VERSION
    assert repr(text) in caught.value.msg
    assert all(version in caught.value.details for version in cni_versions.SUPPORTED)


@pytest.mark.parametrize("value", [1, 1.1, True, ["1.1.0"], {"1.1.0": 1}])
def test_version_that_is_not_a_string_is_refused(value: Any) -> None:
    """The value comes from a file that is not checked before."""
    with pytest.raises(CallerError, match="is not supported"):
        cni_versions.negotiate(value)


def test_supported_versions_ascend_by_number() -> None:
    assert sorted(cni_versions.SUPPORTED, key=cni_versions.parse) == list(cni_versions.SUPPORTED)
    assert cni_versions.LATEST == "1.1.0"


def test_comparison_is_by_number() -> None:
    assert cni_versions.at_least("0.10.0", "0.9.0")
    assert cni_versions.at_least("1.0.0", "1.0.0")
    assert not cni_versions.at_least("0.4.0", "1.0.0")


@pytest.mark.parametrize(
    "text", ["", "1", "1.0", "1.0.0.0", "1.0.x", "-1.0.0", "1.0.+1", "1..0", "\u0661.0.0", "1.0." + "9" * 5000]
)
def test_malformed_version_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        cni_versions.parse(text)


@pytest.mark.parametrize(
    ("verb", "first"),
    [("ADD", "0.1.0"), ("DEL", "0.1.0"), ("VERSION", "0.1.0"), ("CHECK", "0.4.0"), ("STATUS", "1.1.0"), ("GC", "1.1.0")],
)
def test_verb_is_allowed_from_its_version_on(verb: str, first: str) -> None:
    for version in cni_versions.SUPPORTED:
        if cni_versions.at_least(version, first):
            cni_versions.require(verb, version)
        else:
            with pytest.raises(CallerError, match=f"{version}.* does not allow {verb}.*{first}") as caught:
                cni_versions.require(verb, version)
            assert caught.value.code is Code.INCOMPATIBLE_VERSION
            listed = caught.value.details.removeprefix("cniVersion: set ")
            offered = listed.removeprefix("one of the supported versions: ").split(", ")
            assert offered == [later for later in cni_versions.SUPPORTED if cni_versions.at_least(later, first)], (
                "the error offers only versions that allow the verb"
            )
