"""The environment of a call: the variables that each verb needs, and their valid values."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.cni.environment import MAX_CONTAINER_ID, VARIABLES, VERBS, CniCall, parse_environment
from svc.model.errors import CallerError, Code

VALID = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "0a1b",
    "CNI_NETNS": "/var/run/netns/a",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "IP=10.0.0.1",
    "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
    "HOME": "/root",
}
NEEDED = {
    "ADD": {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"},
    "CHECK": {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"},
    "DEL": {"CNI_CONTAINERID", "CNI_IFNAME"},
    "GC": {"CNI_PATH"},
    "STATUS": set(),
    "VERSION": set(),
}


def parsed(**changes: str | None) -> CniCall:
    environment = {name: value for name, value in (VALID | changes).items() if value is not None}
    return parse_environment(environment, ipam=False)


def refused(**changes: str | None) -> CallerError:
    with pytest.raises(CallerError) as caught:
        parsed(**changes)
    assert caught.value.code is Code.INVALID_ENVIRONMENT
    return caught.value


def test_complete_call_is_parsed() -> None:
    assert parsed() == CniCall(
        "ADD",
        container_id="0a1b",
        netns="/var/run/netns/a",
        ifname="eth0",
        args="IP=10.0.0.1",
    )


def test_call_has_its_plugin() -> None:
    assert parse_environment(VALID, ipam=True).ipam
    assert not parse_environment(VALID, ipam=False).ipam


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("blank", ["", None])
def test_error_names_every_missing_variable(verb: str, blank: str | None) -> None:
    variables = dict.fromkeys((variable.name for variable in VARIABLES), blank)
    if not NEEDED[verb]:
        assert parsed(CNI_COMMAND=verb, **variables) == CniCall(verb)
        return
    error = refused(CNI_COMMAND=verb, **variables)
    named = {variable.name for variable in VARIABLES if variable.name in str(error)}
    assert named == NEEDED[verb]
    assert all(variable.remedy in error.details for variable in VARIABLES if variable.name in NEEDED[verb])


@pytest.mark.parametrize("verb", VERBS)
def test_verb_needs_no_other_variables(verb: str) -> None:
    call = parse_environment({"CNI_COMMAND": verb} | {name: VALID[name] for name in NEEDED[verb]}, ipam=False)
    assert call.verb == verb


@pytest.mark.parametrize("blank", ["", None])
def test_error_about_a_missing_verb_lists_the_verbs(blank: str | None) -> None:
    error = refused(CNI_COMMAND=blank)
    assert "CNI_COMMAND is not set" in error.msg
    assert all(verb in error.details for verb in VERBS)


@pytest.mark.parametrize("verb", ["add", "ADD ", "UPDATE", "ADD\n", "\udc80"])
def test_error_about_an_unknown_verb_lists_the_verbs(verb: str) -> None:
    error = refused(CNI_COMMAND=verb)
    assert f"CNI_COMMAND = {verb!r} is not a verb" in error.msg
    assert all(known in error.details for known in VERBS)


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("CNI_CONTAINERID", "-a", "start with a letter or digit"),
        ("CNI_CONTAINERID", ".a", "start with a letter or digit"),
        ("CNI_CONTAINERID", "a/b", "letters, digits, '_', '.' and '-'"),
        ("CNI_CONTAINERID", "a b", "letters, digits, '_', '.' and '-'"),
        ("CNI_CONTAINERID", "a\n", "letters, digits, '_', '.' and '-'"),
        ("CNI_CONTAINERID", "é", "letters, digits, '_', '.' and '-'"),
        ("CNI_CONTAINERID", "a\0", "leave it out"),
        ("CNI_IFNAME", ".", "other than '.', '..', 'all', 'default'"),
        ("CNI_IFNAME", "..", "other than '.', '..', 'all', 'default'"),
        ("CNI_IFNAME", "all", "other than '.', '..', 'all', 'default'"),
        ("CNI_IFNAME", "default", "other than '.', '..', 'all', 'default'"),
        ("CNI_IFNAME", "eth%d", "leave out '/', ':', '%', white space and control characters"),
        ("CNI_IFNAME", "a/b", "leave out '/', ':', '%', white space and control characters"),
        ("CNI_IFNAME", "a:b", "leave out '/', ':', '%', white space and control characters"),
        ("CNI_IFNAME", "a b", "leave out '/', ':', '%', white space and control characters"),
        ("CNI_IFNAME", "a\x01", "leave out '/', ':', '%', white space and control characters"),
        ("CNI_IFNAME", "a\u00a0", "leave out '/', ':', '%', white space and control characters"),
        ("CNI_IFNAME", "a" * 16, "give an interface name of 1 to 15 bytes"),
        ("CNI_IFNAME", "é" * 8, "give an interface name of 1 to 15 bytes"),
        ("CNI_IFNAME", "eth\udc80", "give UTF-8 text"),
        ("CNI_NETNS", "netns/a", "give the path of the network namespace"),
        ("CNI_NETNS", "/a\0b", "leave it out"),
        ("CNI_ARGS", "K=\udc80", "give UTF-8 text"),
    ],
)
def test_error_has_the_malformed_value_and_the_fix(variable: str, value: str, remedy: str) -> None:
    error = refused(**{variable: value})
    assert f"{variable} = {value!r}" in error.msg
    assert f"{variable} = {value!r}" in error.details
    assert remedy in error.details


@pytest.mark.parametrize("value", ["a", "A-b_c.d", "9" * MAX_CONTAINER_ID])
def test_valid_container_id_is_accepted(value: str) -> None:
    assert parsed(CNI_CONTAINERID=value).container_id == value


def test_error_about_a_long_container_id_has_the_limit() -> None:
    error = refused(CNI_CONTAINERID="a" * (MAX_CONTAINER_ID + 1))
    assert "has 129 characters" in error.msg
    assert "give at most 128" in error.details
    assert len(error.details) < 200


@pytest.mark.parametrize("value", ["e", "eth0", "a" * 15, "...", "v-1.2@x", "é" * 7])
def test_valid_interface_name_is_accepted(value: str) -> None:
    assert parsed(CNI_IFNAME=value).ifname == value


def test_all_errors_are_reported_in_one() -> None:
    error = refused(CNI_CONTAINERID="-", CNI_NETNS="", CNI_IFNAME="a/b")
    assert error.msg == "invalid environment: 3 errors"
    assert "CNI_CONTAINERID = '-'" in error.details
    assert "CNI_NETNS is not set, but ADD needs it" in error.details
    assert "CNI_IFNAME = 'a/b'" in error.details


def test_gc_needs_a_directory_in_its_path() -> None:
    error = refused(CNI_COMMAND="GC", CNI_PATH="::")
    assert "CNI_PATH = '::' names no directory" in error.msg


@pytest.mark.parametrize("value", ["gone", "/a\0", "\udc80"])
def test_malformed_namespace_does_not_fail_a_del(value: str) -> None:
    """The ADD may have failed because of the same value, and the DEL after it must succeed."""
    assert parsed(CNI_COMMAND="DEL", CNI_NETNS=value).netns == ""


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL"])
@pytest.mark.parametrize("value", ["vm-7", "./relative", "/a\0", "\udc80"])
def test_ipam_plugin_ignores_the_namespace(verb: str, value: str) -> None:
    assert parse_environment(VALID | {"CNI_COMMAND": verb, "CNI_NETNS": value}, ipam=True).netns == ""


def test_ipam_plugin_requires_a_namespace() -> None:
    with pytest.raises(CallerError, match="CNI_NETNS is not set"):
        parse_environment(VALID | {"CNI_NETNS": ""}, ipam=True)


def test_status_ignores_variables_that_it_does_not_need() -> None:
    assert parsed(CNI_COMMAND="STATUS", CNI_CONTAINERID="-", CNI_IFNAME="/") == CniCall(
        "STATUS", netns=VALID["CNI_NETNS"], args=VALID["CNI_ARGS"]
    )


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_trace_context_is_parsed() -> None:
    assert parsed(TRACEPARENT=TRACE).traceparent == TRACE


@pytest.mark.parametrize(
    "text",
    ["", "x", TRACE + "-00", TRACE.upper(), TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), "ff" + TRACE[2:]],
)
def test_malformed_trace_context_is_ignored(text: str) -> None:
    assert parsed(TRACEPARENT=text).traceparent == ""


@given(st.dictionaries(st.sampled_from(sorted(VALID)), st.text() | st.sampled_from(sorted(VALID.values()))))
def test_any_environment_is_accepted_or_refused(changes: dict[str, str]) -> None:
    with suppress(CallerError):
        call = parse_environment(VALID | changes, ipam=False)
        assert call.verb in VERBS
        assert len(call.ifname.encode()) <= 15
