"""What protects each write of svcctl from overwriting a change that it has not seen."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from harness.installations import MERGE
from harness.kube import Kube
from svc.datastore.orch.client import ApiError, Client
from svc.upgrade import step_runner

Json = dict[str, Any]

_CONFLICT = 409
_ATTEMPTS = 100
_MARK = "tests/changed-between"


def guard_of(method: str, body: Any) -> str:
    """Return what a write names of the object that it was made for; empty if it names nothing.

    A creation fails if the object exists."""
    if method == "POST":
        return "creation"
    if isinstance(body, list):
        tested = {each["path"] for each in body if each["op"] == "test"}
        return "test" if tested & {"/metadata/uid", "/metadata/resourceVersion"} else ""
    found = body.get("preconditions", {}) if method == "DELETE" else body.get("metadata", {})
    return next((name for name in ("resourceVersion", "uid") if found.get(name)), "")


@contextmanager
def watched_writes() -> Iterator[list[tuple[str, str, str]]]:
    """Yield the writes of the block, without dry runs: method, path and guard."""
    found, send = list[tuple[str, str, str]](), Client._call

    def call(self: Client, method: str, path: str, body: Any = None, *more: Any, **options: Any) -> Any:
        params = options.get("params") or (more[1] if len(more) > 1 else {}) or {}
        if method != "GET" and "dryRun" not in params:
            found.append((method, path, guard_of(method, body)))
        return send(self, method, path, body, *more, **options)

    with patch.object(Client, "_call", call):
        yield found


def require_guards(found: list[tuple[str, str, str]]) -> None:
    """Require that there are writes, and that each one has a guard."""
    assert len(found) > 5
    assert [(method, path) for method, path, guard in found if not guard] == []


@contextmanager
def nothing_written(seconds: float = 10.0) -> Iterator[None]:
    """Require that the block writes nothing, not even the Lease, and is over in time."""
    began = time.monotonic()
    with watched_writes() as found:
        yield
    assert found == []
    assert time.monotonic() - began <= seconds


class Races:
    """Changes of objects, each between the last read and the first write of svcctl. The objects say the same afterwards."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.statuses: dict[str, int] = {}
        """The answer to the first write by path; 0 for one that the server has accepted."""
        self.blind: list[str] = []
        """The writes that follow on a refused one without a read."""
        self._unread: set[str] = set()

    def note_read(self, path: str) -> None:
        """Note a read of an object, or of a list of its namespace or of all."""
        self._unread = {each for each in self._unread if path not in (each, *_lists_of(each))}

    def note_write(self, method: str, path: str) -> bool:
        """Note a write. Change its object if it is the first write to that. Return whether it is."""
        if path in self._unread:
            self.blind.append(f"{method} {path}")
        if path in self.statuses:
            return False
        self.statuses[path] = 0
        for text in ("x", None):
            body = {"metadata": {"annotations": {_MARK: text}}}
            self._kube.call("PATCH", f"{path}?fieldManager=racer", body, MERGE)
        return True

    def note_refusal(self, path: str, status: int) -> None:
        """Note the answer to the first write."""
        self.statuses[path] = status
        self._unread.add(path)

    def require_conflicts(self) -> None:
        """Require that there were writes, that each one was refused at first, and made again only after a read."""
        assert self.statuses
        others = {path: status for path, status in self.statuses.items() if status != _CONFLICT}
        assert not others, others
        assert not self.blind, self.blind


def _lists_of(path: str) -> tuple[str, str]:
    folder = path.rpartition("/")[0]
    return folder, re.sub(r"/namespaces/[^/]+/", "/", folder)


@contextmanager
def raced_writes(kube: Kube) -> Iterator[Races]:
    """Let another program change each object just before the first write to it in the block.

    Leases are left out, and annotations of a pod that only name its UID. A step with many objects looks as often again."""
    found, send = Races(kube), Client._call

    def call(self: Client, method: str, path: str, body: Any = None, *more: Any, **options: Any) -> Any:
        params = options.get("params") or (more[1] if len(more) > 1 else {}) or {}
        if method == "GET":
            found.note_read(path)
        is_change = method in ("PUT", "PATCH", "DELETE") and "dryRun" not in params and "/leases/" not in path
        is_of_uid = method == "PATCH" and guard_of(method, body) == "uid"
        is_first = is_change and not is_of_uid and found.note_write(method, path)
        try:
            return send(self, method, path, body, *more, **options)
        except ApiError as error:
            if is_first:
                found.note_refusal(path, error.status)
            raise

    with patch.object(Client, "_call", call), patch.object(step_runner, "ATTEMPTS", _ATTEMPTS):
        yield found
