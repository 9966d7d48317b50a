"""Reports on calls: those that run, those that have ended, and the stacks of all threads.

Calls record nothing for these reports but their log lines and decisions. The reports parse the lines, and find running calls on
the stacks of their threads.
"""

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import CodeType, FrameType
from typing import Any, Final

import orjson

from svc.agent.call import AgentCall
from svc.agent.ended_calls import EndedCall

_LINE: Final = re.compile(
    r"(?P<time>\S+ \S+) (?P<level>[A-Z]+) \[(?P<request>\w+)\](?P<fields>(?: \w+=\S+)*?) (?P<text>(?!\w+=\S+ ).*)"
)
_PHASE: Final = re.compile(r" (\w+)=(\d+\.\d+)(?= |$)")
_ENTRY: Final = AgentCall.run.__code__

Json = dict[str, Any]


def ended_calls(calls: Iterable[EndedCall], container: str = "") -> Json:
    """Return the calls, or those of the containers whose ID begins so, in their order.

    Each is encoded at once. A thousand calls as Python objects take some MiB, which are not returned after the reply.
    """
    wanted = f" container={container}".encode() if container else b""
    found = (parse_call(lines, decisions) for lines, decisions in calls if wanted in lines)
    return {"calls": [orjson.Fragment(orjson.dumps(call)) for call in found]}


def parse_call(text: bytes, decisions: Sequence[str] = ()) -> Json:
    """Return the values in the log lines of a call, and the lines. The last line has its outcome and the phases."""
    lines = text.decode(errors="replace").splitlines()
    matches = [match for match in map(_LINE.fullmatch, lines) if match]
    call: Json = {"time": None, "request": "", "outcome": "", "message": "", "phases": {}}
    call |= {"decisions": decisions, "lines": lines}
    if not matches:
        return call
    fields = dict(pair.split("=", 1) for match in matches for pair in match["fields"].split())
    failed = [match["text"] for match in matches if match["level"] == "ERROR" and match["text"].startswith("code ")]
    last = failed[-1] if failed else matches[-1]["text"]
    phases = {name: float(milliseconds) for name, milliseconds in _PHASE.findall(last)}
    message = _PHASE.sub("", last).strip()
    outcome = "error" if failed else "ok" if message.startswith("ok") else "unfinished"
    values = {"time": _unix(matches[-1]["time"]), "request": matches[-1]["request"], "outcome": outcome, "message": message}
    return call | values | {"phases": phases} | fields


def _unix(text: str) -> float | None:
    """Return the Unix time of a log line."""
    try:
        return datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        return None


def running_calls() -> list[Json]:
    """Return the calls that workers carry out now, with the seconds since their arrival."""
    # A variable that keeps a frame after the loop would be part of a cycle: the last frame may be of this function.
    found = [_call_in(thread, frame) for thread, frame in _frames()]
    return [call for call in found if call is not None]


def _call_in(thread: threading.Thread, frame: FrameType) -> Json | None:
    """Return the call that a thread carries out now; None if it has none."""
    entry = _innermost(frame, _ENTRY)
    if entry is None:
        return None
    call, job = entry.f_locals["self"], entry.f_locals["job"]
    identity = {"request": call.trace.request_id, **call.trace.fields}
    return {**identity, "seconds": round(job.waited() / 1000, 3), "thread": thread.name}


def thread_stacks() -> list[Json]:
    """Return each thread with its stack, the outermost frame first."""
    return [{"name": thread.name, "id": thread.native_id, "stack": _stack(frame)} for thread, frame in _frames()]


def _frames() -> Iterator[tuple[threading.Thread, FrameType]]:
    """Yield each thread with its innermost frame."""
    frames = sys._current_frames()
    try:
        for thread in threading.enumerate():
            if thread.ident in frames:
                yield thread, frames[thread.ident]
    finally:
        frames.clear()  # one is of this function: frames, with all values of their calls, would stay until garbage is collected


def _innermost(frame: FrameType | None, code: CodeType) -> FrameType | None:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def _stack(frame: FrameType | None) -> list[str]:
    found = []
    while frame is not None:
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]
