"""Kinds of introspection requests: refused requests, and the reports on calls."""

import gc
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import orjson
import pytest

import svc
from svc.agent.call_report import ended_calls, parse_call, running_calls, thread_stacks
from svc.agent.ended_calls import CUT, MAX_BYTES, MAX_CALLS, MAX_OTHERS, EndedCall, EndedCalls
from svc.agent.introspection import KINDS, answer
from svc.agent.state_report import AgentView
from svc.call_trace import CallTrace
from svc.cni.call_io import Reply
from svc.cni.introspection_frame import REPLY_LIMIT

TIMEOUT_SECONDS = 20.0
VIEW = cast(AgentView, None)  # refused requests read nothing


@pytest.mark.parametrize(
    ("document", "field", "value", "problem"),
    [
        (b"nonsense", "", "nonsense", "is not JSON: "),
        (b"\xff\xfe", "", "\ufffd\ufffd", "is not JSON: "),
        (b"[1]", "", [1], "is not an object"),
        (b"{}", "kind", None, "is missing"),
        (b'{"kind": "everything"}', "kind", "everything", "is not a kind of request"),
        (b'{"kind": ["state"]}', "kind", ["state"], "is not a kind of request"),
        (b'{"kind": "state", "container": "c1"}', "container", "c1", "is not an option of state"),
        (b'{"kind": "calls", "limit": "5"}', "limit", "5", "is not an option of calls"),
        (b'{"kind": "calls", "container": 5}', "container", 5, "is not a string"),
    ],
)
def test_bad_request_names_field_value_and_remedy(document: bytes, field: str, value: object, problem: str) -> None:
    reply = answer(VIEW, document)
    assert (reply["error"]["field"], reply["error"]["value"]) == (field, value)
    assert reply["error"]["problem"].startswith(problem)
    assert reply["error"]["remedy"]
    assert reply["version"] == svc.__version__


def test_unknown_kind_lists_the_kinds() -> None:
    remedy = answer(VIEW, b'{"kind": "x"}')["error"]["remedy"]
    assert all(kind in remedy for kind in KINDS)
    assert {"state", "attachments", "calls", "metrics", "threads"} <= KINDS.keys()


def lines_of(trace: CallTrace) -> bytes:
    return "".join(trace.lines).encode()


def trace(container: str = "c1", **fields: str) -> CallTrace:
    made = CallTrace("0a1b2c3d", "DEBUG")
    made.fields |= {"verb": "ADD", "container": container, "ifname": "eth0", **fields}
    made.phases |= {"queue": 0.25, "ipam": 12.5}
    return made


def reported(calls: Iterable[EndedCall], container: str = "") -> list[dict[str, Any]]:
    """Return the calls as a client of introspection reads them."""
    found: list[dict[str, Any]] = orjson.loads(orjson.dumps(ended_calls(calls, container)))["calls"]
    return found


def test_ended_call_has_its_values() -> None:
    call = trace(pod="default/web-0")
    call.debug("pool pool4: node selector x == 'y' does not match")
    call.fields["network"] = "net"
    call.info(f"ok 10.0.0.1/32 {call.phases_text()} total=13.00")
    (found,) = reported([(lines_of(call), ())])
    assert {name: found[name] for name in ("verb", "container", "ifname", "pod", "network", "request", "outcome")} == {
        "verb": "ADD", "container": "c1", "ifname": "eth0", "pod": "default/web-0", "network": "net",
        "request": "0a1b2c3d", "outcome": "ok",
    }  # fmt: skip
    assert (found["message"], found["phases"]) == ("ok 10.0.0.1/32", {"queue": 0.25, "ipam": 12.5, "total": 13.0})
    assert abs(found["time"] - time.time()) < TIMEOUT_SECONDS
    assert found["lines"] == [line.rstrip("\n") for line in call.lines]


def test_failed_call_has_its_error() -> None:
    """A traceback, and lines after the error, do not change it."""
    call = trace()
    call.error("Traceback (most recent call last):\n  File x = y\n")
    call.error(f"code 104: etcd at 10.0.0.1: no answer: see a=b {call.phases_text()}")
    call.warning("log file 'x' cannot be written: full")
    found = parse_call(lines_of(call))
    assert (found["outcome"], found["message"]) == ("error", "code 104: etcd at 10.0.0.1: no answer: see a=b")
    assert found["phases"] == {"queue": 0.25, "ipam": 12.5}


def ended(call: CallTrace, status: int = 0, intent: int = 0) -> EndedCall:
    """Return what is remembered of a call."""
    calls = EndedCalls()
    calls.add(call, Reply(status, b"", lines_of(call), intent))
    (found,) = calls.read()
    return found


@pytest.mark.parametrize(("intent", "outcome"), [(0, "ok"), (1, "unfinished")])
@pytest.mark.parametrize("level", ["WARNING", "ERROR"])
def test_call_without_the_line_of_its_outcome_leaves_it(level: str, intent: int, outcome: str) -> None:
    """The log level of its network keeps no lines of successful calls."""
    call = trace()
    call.set_level(level)
    call.warning("address 10.0.0.1 bypasses IPAM")
    call.info("ok")
    (found,) = reported([ended(call, intent=intent)])
    assert (found["outcome"], found["container"], found["request"]) == (outcome, "c1", "0a1b2c3d")
    assert found["phases"] == ({} if intent else {"queue": 0.25, "ipam": 12.5})
    assert ("bypasses" in found["lines"][0]) == (level == "WARNING")


def test_decisions_are_remembered_at_each_log_level() -> None:
    call = trace()
    call.set_level("ERROR")
    call.decide("IPv4: 10.0.0.1 of block 10.0.0.0/26")
    (found,) = reported([ended(call)])
    assert found["decisions"] == ["IPv4: 10.0.0.1 of block 10.0.0.0/26"]


@pytest.mark.parametrize("lines", [b"", b"a line\n", b"0\0", b"7\0abc\0d\n"])
@pytest.mark.parametrize("decisions", [[], [""], ["one"], ["one", "two \udcff"]])
def test_call_is_read_as_it_was_added(lines: bytes, decisions: list[str]) -> None:
    calls, call = EndedCalls(), trace()
    call.decisions += decisions
    calls.add(call, Reply(1, b"", lines))
    shown = tuple(text.replace("\udcff", "\\udcff") for text in decisions)
    assert list(calls.read()) == [(lines, shown)]


def test_call_that_another_process_continues_is_unfinished() -> None:
    call = trace()
    call.info("not finished here: the call goes on in another process")
    assert parse_call(lines_of(call))["outcome"] == "unfinished"


@pytest.mark.parametrize("text", ["", "nonsense", "a b c d", "\n\n"])
def test_other_text_is_kept(text: str) -> None:
    assert parse_call(text.encode())["lines"] == text.splitlines()


def test_calls_of_one_container_are_found_by_the_beginning_of_its_id() -> None:
    calls = EndedCalls()
    for container in ("abc1", "abc2", "xabc"):
        call = trace(container)
        call.info("ok")
        calls.add(call, Reply(0, b"", lines_of(call)))
    assert [call["container"] for call in reported(calls.read(), "abc")] == ["abc1", "abc2"]
    assert ended_calls(calls.read(), "none") == {"calls": []}


def test_lines_of_a_call_are_bounded_and_keep_the_outcome() -> None:
    call = trace()
    for number in range(1000):
        call.debug(f"request {number}")
    call.error(f"code 104: no answer {call.phases_text()}")
    lines, _ = ended(call, status=1)
    assert len(lines) <= MAX_BYTES + len(CUT)
    found = parse_call(lines)
    assert (found["outcome"], found["message"]) == ("error", "code 104: no answer")
    assert found["lines"][0].endswith("request 0")
    assert found["lines"][-2] == CUT.decode().rstrip()
    assert all(line.split(" ")[-2] == "request" for line in found["lines"][:-2])


def test_replies_with_all_calls_are_within_the_limit() -> None:
    calls = EndedCalls()
    for _ in range(MAX_CALLS):
        call = trace()
        call.error("code 104: " + "x\\" * MAX_BYTES)
        calls.add(call, Reply(1, b"", lines_of(call)))
    assert len(orjson.dumps(ended_calls(calls.read()))) < REPLY_LIMIT


def test_status_calls_do_not_displace_those_of_containers() -> None:
    calls, status = EndedCalls(), trace()
    calls.add(trace(), Reply(0, b"", b"add"))
    del status.fields["container"]
    for number in range(2 * MAX_CALLS):
        calls.add(status, Reply(0, b"", b"%d" % number))
    assert list(calls.read())[-1] == (b"add", ())
    assert len(list(calls.read())) == MAX_OTHERS + 1
    for number in range(2 * MAX_CALLS):
        calls.add(trace(), Reply(0, b"", b"%d" % number))
    assert len(list(calls.read())) == MAX_OTHERS + MAX_CALLS
    assert MAX_CALLS == 1000


def test_stacks_name_file_line_and_function() -> None:
    gate, begun = threading.Event(), threading.Event()

    def wait_at_gate() -> None:
        begun.set()
        gate.wait(TIMEOUT_SECONDS)

    thread = threading.Thread(target=wait_at_gate, name="waiting")
    thread.start()
    assert begun.wait(TIMEOUT_SECONDS)
    found: dict[str, Any] = {each["name"]: each for each in thread_stacks()}
    gate.set()
    thread.join()
    assert found["waiting"]["id"] == thread.native_id
    assert any(place.startswith(__file__) and place.endswith(" wait_at_gate") for place in found["waiting"]["stack"])


@pytest.mark.parametrize("report", [thread_stacks, running_calls])
def test_report_on_threads_leaves_no_garbage(report: Callable[[], object]) -> None:
    """Their frames would keep what the calls of all threads have."""
    gc.collect()
    gc.disable()
    try:
        report()
        assert not gc.collect()
    finally:
        gc.enable()
