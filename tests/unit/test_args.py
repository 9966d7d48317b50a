"""CNI_ARGS: pairs, the pod, a requested address."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.model.errors import CallerError, Code
from svc.netconf.args import KEYS, Args, parse_args


def refused(text: str, *, ignore_unknown: bool = False) -> CallerError:
    with pytest.raises(CallerError) as caught:
        parse_args(text, ignore_unknown=ignore_unknown)
    assert caught.value.code is Code.INVALID_ENVIRONMENT
    return caught.value


def test_empty_text_names_no_pod() -> None:
    assert parse_args("") == Args()
    assert not parse_args("").pod_name


def test_every_key_is_read() -> None:
    text = "IP=10.0.0.1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop;K8S_POD_INFRA_CONTAINER_ID=0a;K8S_POD_UID=u-1;IgnoreUnknown=1"
    args = parse_args(text)
    assert args == Args("10.0.0.1", "web-0", "shop", "0a", "u-1", ignore_unknown=True)
    assert args.pod_name


@pytest.mark.parametrize("text", ["IP", "IP=10.0.0.1;", ";IP=10.0.0.1", "IP=10.0.0.1;;", "IP==", "K8S_POD_UID=a=b", ";"])
def test_text_that_is_not_pairs_is_refused(text: str) -> None:
    error = refused(text)
    assert "is not a pair" in str(error)
    assert "write KEY=VALUE;KEY=VALUE" in error.details


def test_error_quotes_the_malformed_pair() -> None:
    assert "CNI_ARGS = 'a=b=c'" in refused("IP=10.0.0.1;a=b=c").msg


@pytest.mark.parametrize("key", ["ip", "k8s_pod_name", "ignoreunknown", "IGNOREUNKNOWN", " IP", "X", ""])
def test_error_about_an_unknown_key_lists_the_known_keys(key: str) -> None:
    """Keys are case-sensitive."""
    error = refused(f"{key}=1")
    assert f"CNI_ARGS {key} = '1' is not known" in error.msg
    assert "IgnoreUnknown=true" in error.details
    assert all(known in error.details for known in KEYS)


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE", "tRuE"])
def test_unknown_keys_are_kept_when_ignored(text: str) -> None:
    assert parse_args(f"X=1;IgnoreUnknown={text};Y=").others == {"X": "1", "Y": ""}


@pytest.mark.parametrize("text", ["0", "false", "False"])
def test_ignore_unknown_in_the_text_overrides_the_argument(text: str) -> None:
    assert parse_args("X=1", ignore_unknown=True).others == {"X": "1"}
    assert "CNI_ARGS X" in refused(f"X=1;IgnoreUnknown={text}", ignore_unknown=True).msg


@pytest.mark.parametrize("text", ["yes", "2", "t", "on", " true"])
def test_other_spellings_of_booleans_are_refused(text: str) -> None:
    error = refused(f"IgnoreUnknown={text}")
    assert f"CNI_ARGS IgnoreUnknown = {text!r} is not a boolean" in error.msg
    assert "write one of 1, true, 0, false" in error.details


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("FD00:0:0::01", "fd00::1"), ("", "")],
)
def test_requested_address_is_canonical(text: str, canonical: str) -> None:
    assert parse_args(f"IP={text}").ip == canonical


@pytest.mark.parametrize("text", ["10.0.0.1/24", "fd00::1/64", "10.0.0.1/"])
def test_requested_network_is_refused(text: str) -> None:
    error = refused(f"IP={text}")
    assert f"CNI_ARGS IP = {text!r} is a network, not an address" in error.msg
    assert "without a prefix length" in error.details


@pytest.mark.parametrize("text", ["10.0.0", "10.0.0.256", "010.0.0.1", "fe80::1%eth0", "web", "10.0.0.1,10.0.0.2", " 10.0.0.1"])
def test_malformed_address_is_refused(text: str) -> None:
    error = refused(f"IP={text}")
    assert f"CNI_ARGS IP = {text!r} is not an address" in error.msg
    assert "give one IPv4 or IPv6 address" in error.details


@pytest.mark.parametrize(
    "text", ["K8S_POD_NAME=a", "K8S_POD_NAMESPACE=a", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=", "K8S_POD_NAME=;K8S_POD_NAMESPACE=a"]
)
def test_pod_needs_a_name_and_a_namespace(text: str) -> None:
    args = parse_args(text)
    assert (args.pod_name, args.pod_namespace) == ("", "")


@pytest.mark.parametrize("name", ["a/b", "-a", "a b", "../x", "a" * 254, "é"])
@pytest.mark.parametrize("key", ["K8S_POD_NAME", "K8S_POD_NAMESPACE"])
def test_pod_name_that_is_not_an_object_name_is_refused(key: str, name: str) -> None:
    """The names become parts of datastore keys."""
    error = refused(f"K8S_POD_NAME=a;K8S_POD_NAMESPACE=b;{key}={name}")
    assert f"CNI_ARGS {key} = '{name[:10]}" in error.msg
    assert "give up to 253 letters" in error.details


def test_last_of_equal_keys_counts() -> None:
    assert parse_args("IP=10.0.0.1;IP=10.0.0.2").ip == "10.0.0.2"


def test_all_errors_are_reported_in_one() -> None:
    error = refused("IP=x;X=1;y;IgnoreUnknown=maybe;K8S_POD_NAME=/")
    assert error.msg == "invalid CNI_ARGS: 5 errors"
    for part in ("IP = 'x'", "X = '1'", "CNI_ARGS = 'y'", "IgnoreUnknown = 'maybe'", "K8S_POD_NAME = '/'"):
        assert part in error.details


def test_lenient_parsing_skips_invalid_pairs() -> None:
    """A DEL must not fail because of a pair that its ADD refused."""
    args = parse_args("IP=x;y;Z=1;K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", lenient=True)
    assert args == Args("", "a", "b", others={"Z": "1"})
    assert not parse_args("K8S_POD_NAME=/;K8S_POD_NAMESPACE=b", lenient=True).pod_name


PIECES = st.sampled_from([*KEYS, "=", ";", "1", "true", "10.0.0.1", "/24", "\udc80", "\0"]) | st.text()


@given(st.lists(PIECES).map("".join), st.booleans())
def test_any_text_is_accepted_or_refused(text: str, ignore_unknown: bool) -> None:
    with suppress(CallerError):
        args = parse_args(text, ignore_unknown=ignore_unknown)
        assert bool(args.pod_name) == bool(args.pod_namespace)
    parse_args(text, lenient=True)
