"""A program of svc with other constants, which kills or pauses itself at one of its writes:

    python marred_program.py PLAN PROGRAM ARGUMENTS...

PROGRAM is a module with a `main`. PLAN is a JSON object:

- `constants`: values by `MODULE:NAME`.
- `last` and `fate`: what happens at the write of this number, counted from 0. `killed` is a kill before it is sent, and
  `killed after` a kill after it was applied, but before its answer is read. `paused` is SIGSTOP in place of the first.
- `writes`: a file to which each write adds a line.
- `threads`: the names of the threads whose writes count.

A write is one request to a server: a transaction of etcd, or a request other than GET to the API server. Those of the Lease of
the election do not count.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED, KILLED_AFTER, PAUSED = "killed", "killed after", "paused"


class Writes:
    """The writes of this process, which end with the planned one."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._last, self._fate = plan.get("last"), plan.get("fate", KILLED)
        self._threads = plan.get("threads")
        self._file = Path(plan["writes"]) if "writes" in plan else None
        self._lock = threading.Lock()
        self._count = 0

    def make(self, what: str, send: Callable[[], Any]) -> Any:
        if self._threads and threading.current_thread().name not in self._threads:
            return send()
        with self._lock:  # so that another thread makes no write after the planned one
            is_last = self._count == self._last
            self._count += 1
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(what + "\n")
            if is_last and self._fate == PAUSED:
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.5)  # the threads of a process run on for a moment after the signal
            elif is_last:
                if self._fate == KILLED_AFTER:
                    send()
                os.kill(os.getpid(), signal.SIGKILL)
            return send()


def main() -> int:
    plan, program, *sys.argv[1:] = sys.argv[1:]
    arm(json.loads(plan))
    return int(importlib.import_module(program).main())


def arm(plan: dict[str, Any]) -> None:
    from svc.datastore.etcd.connection import EtcdConnection
    from svc.datastore.orch.client import Client
    from svc.metrics import WRITE

    for place, value in plan.get("constants", {}).items():
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name), place
        setattr(importlib.import_module(module), name, value)
    writes, txn, attempt = Writes(plan), EtcdConnection.txn, Client._attempt

    def counted_txn(self: EtcdConnection, request: Any, seconds: float, operation: int) -> Any:
        if operation != WRITE:
            return txn(self, request, seconds, operation)
        keys = [each.request_put.key or each.request_delete_range.key for each in request.success]
        return writes.make(f"etcd {b' '.join(filter(None, keys)).decode()}", lambda: txn(self, request, seconds, operation))

    def counted_attempt(self: Client, request: Any, *rest: Any) -> Any:
        if request.is_read or request.path.endswith(("/leases", "/leases/svc-controllers")):
            return attempt(self, request, *rest)
        return writes.make(str(request), lambda: attempt(self, request, *rest))

    EtcdConnection.txn, Client._attempt = counted_txn, counted_attempt  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    sys.exit(main())
