"""What protects each write of svcctl from overwriting a change that it has not seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from svc.datastore.orch.client import Client

Json = dict[str, Any]


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
