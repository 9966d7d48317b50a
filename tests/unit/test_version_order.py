"""The order of versions, compared with that of the package `packaging`, and with the examples of semantic versions."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from svc.admin.version_order import order_of

SEMANTIC = (  # in their order, from semver.org and from releases of other products
    "v1.0.0-0.dev", "1.0.0-alpha", "1.0.0-alpha.1", "v1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
    "1.0.0-rc.1", "v1.0.0", "1.0.1-0.dev-12-gabcdef", "1.0.1", "1.2", "1.10.0",
)  # fmt: skip
numbers = st.integers(0, 12)
releases = st.lists(numbers, min_size=1, max_size=4).map(lambda found: ".".join(map(str, found)))
phases = st.one_of(
    st.just(""), st.tuples(st.sampled_from(["a", "b", "rc"]), numbers).map(lambda found: f"{found[0]}{found[1]}")
)
posts = st.one_of(st.just(""), numbers.map(lambda number: f".post{number}"))
devs = st.one_of(st.just(""), numbers.map(lambda number: f".dev{number}"))
package_versions = st.tuples(releases, phases, posts, devs).map("".join)


@given(package_versions, package_versions)
def test_versions_of_packages_compare_as_packaging_compares_them(first: str, second: str) -> None:
    one, other = order_of(first), order_of(second)
    assert one is not None
    assert other is not None
    assert (one < other, one == other) == (Version(first) < Version(second), Version(first) == Version(second))


def test_semantic_versions_have_their_order() -> None:
    found = [order_of(text) for text in SEMANTIC]
    assert None not in found
    for (number, one), (place, other) in product(enumerate(found), repeat=2):
        assert one is not None
        assert other is not None
        assert (one < other) == (number < place)


@pytest.mark.parametrize(
    ("package", "semantic"),
    [("1.2.0rc1", "v1.2.0-rc.1"), ("1.2a3", "1.2.0-alpha.3"), ("1.2b0", "v1.2-beta.0"), ("1", "v1.0.0")],
)
def test_both_forms_of_a_version_are_equal(package: str, semantic: str) -> None:
    assert order_of(package) == order_of(semantic) is not None


def test_build_does_not_count() -> None:
    assert order_of("v1.2.0+build.7") == order_of("1.2.0") == order_of("1.2.0+other")


@pytest.mark.parametrize(
    ("built", "plain"),
    [
        ("v3.29.1-amd64", "v3.29.1"), ("3.29.1-linux-arm64", "v3.29.1"), ("v3.29-fips", "3.29.0"),
        ("v3.29.1-rc.1-amd64", "v3.29.1-rc.1"), ("v3.29.1-rc1-s390x", "3.29.1rc1"), ("v1.2.0-beta2", "1.2b2"),
    ],
)  # fmt: skip
def test_word_about_a_build_does_not_count(built: str, plain: str) -> None:
    assert order_of(built) == order_of(plain) is not None


@pytest.mark.parametrize("suffix", ["rc.1", "RC2", "alpha-amd64", "dev", "0.dev", "7"])
def test_pre_release_is_before_its_release(suffix: str) -> None:
    one, release = order_of(f"v3.29.1-{suffix}"), order_of("v3.29.1")
    assert one is not None
    assert release is not None
    assert one < release


def test_forms_are_mixed_in_one_order() -> None:
    mixed = ["0.9", "1.0.dev4", "1.0.0-0.dev", "1.0a1", "1.0.0-alpha.2", "1.0b1", "1.0.0-rc.1", "1.0rc2", "v1.0.0", "1.0.post1"]
    for before, after in pairwise(map(order_of, mixed)):
        assert before is not None
        assert after is not None
        assert before < after


@pytest.mark.parametrize(
    "text", ["", "v", "unknown", "1.", "1..2", "1.2.0-", "1!2.0", "1.2 ", "latest-1", "1.2.0-rc..1", "१.२", "1.2\n"]
)
def test_what_is_no_version_has_no_order(text: str) -> None:
    assert order_of(text) is None


@given(st.text(max_size=20))
def test_any_text_has_an_order_or_none(text: str) -> None:
    found = order_of(text)
    assert found is None or found[0]
