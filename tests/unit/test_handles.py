"""Handles of networks and containers, and their older forms."""

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from svc.attach import handles
from svc.attach.record import ADDED, AttachmentId, Record
from svc.model.custom_resources import handle_name
from svc.model.endpoint import Workload
from svc.names import DEFAULT

PLAIN = replace(DEFAULT, plain_handles=True)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.\-]{0,5}", fullmatch=True)
PAIRS = st.tuples(NAMES, NAMES)


@given(PAIRS, PAIRS)
def test_different_pairs_have_different_handles(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (handles.handle_of(DEFAULT, *one) == handles.handle_of(DEFAULT, *other)) == (one == other)


@given(PAIRS, NAMES)
def test_container_is_found_only_in_its_network(pair: tuple[str, str], network: str) -> None:
    handle = handles.handle_of(DEFAULT, *pair)
    assert handles.container_of(DEFAULT, pair[0], handle) == pair[1]
    if network != pair[0]:
        assert handles.container_of(DEFAULT, network, handle) == ""


def test_networks_without_a_dot_keep_the_plain_form() -> None:
    assert handles.handle_of(DEFAULT, "net", "a.b") == handles.handle_of(PLAIN, "net", "a.b") == "net.a.b"
    assert handles.handle_of(DEFAULT, "net.a", "b") == "net..a.b"
    assert handles.handle_of(PLAIN, "net.a", "b") == "net.a.b"


def test_plain_form_is_ambiguous_if_the_container_has_a_dot() -> None:
    assert handles.container_of(PLAIN, "net", "net.ab") == "ab"
    assert handles.container_of(PLAIN, "net", "net.a.b") == ""
    assert list(handles.pairs_of("net.a.b")) == [("net", "a.b"), ("net.a", "b")]
    assert [handles.is_ambiguous(PLAIN, *pair) for pair in (("net", "ab"), ("net", "a.b"), ("n.t", "b"))] == [False, True, True]
    assert [handles.is_ambiguous(DEFAULT, *pair) for pair in (("net", "a.b"), ("n.t", "b"))] == [True, False]


def test_older_forms_depend_on_the_profile() -> None:
    pod, container = Workload("c1", "web-0", "shop"), Workload("c1")
    assert handles.older_handle(PLAIN, "net", pod) == "shop.web-0"
    assert handles.older_handle(PLAIN, "net", container) == "c1"
    assert [handles.older_handle(DEFAULT, network, pod) for network in ("net", "n.t")] == ["", "n.t.c1"]


def test_journal_entry_of_an_earlier_release_has_the_plain_form() -> None:
    """It lacks the field. An entry of this release has its own handle."""
    record = Record(AttachmentId("n.t", "c1", "eth0"), ADDED, "boot", (1, 2), "node1", {}, "svc1", "mac")
    fields = {name: value for name, value in orjson.loads(record.to_bytes()).items() if "handle" not in name}
    assert Record.from_bytes(orjson.dumps(fields)).handle == "n.t.c1"
    record.handle = "n..t.c1"
    assert Record.from_bytes(record.to_bytes()).handle == "n..t.c1"


# names of objects


def test_valid_names_are_only_lowercased() -> None:
    for handle in ("pods.0123", "Pods.0A", "a-b.c.d", "ipip-tunnel-addr-node1"):
        assert handle_name(handle) == handle.lower()


@given(PAIRS, PAIRS)
def test_different_handles_have_different_object_names(one: tuple[str, str], other: tuple[str, str]) -> None:
    """The handles are in lower case. The object itself has the exact handle."""
    first, second = (handle_name(handles.handle_of(DEFAULT, *pair)) for pair in (one, other))
    assert (first == second) == (one == other)
    assert len(first) <= 253
    assert all(part and part[0].isalnum() and part[-1].isalnum() for part in first.split("."))
    assert set(first) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def test_long_handles_are_shortened() -> None:
    first, second = (handle_name(handles.handle_of(DEFAULT, "n." * 62, "c" * 127 + end)) for end in "ab")
    assert len(first) == len(second) <= 253
    assert first != second
    assert len(handle_name("n" * 124 + "." + "c" * 128)) == 253
