"""svcctl that counts its writes, and kills itself before or after one of them.

    python counted_writes.py NUMBER before|after|interrupt FILE ARGUMENTS...

A write is a request that is neither a read nor a dry run, a transaction of etcd, or a file of a backup. Requests of other
threads, such as renewals of a Lease, do not count. A move has one connection here, and does not wait for calls in flight. FILE
gets the number of writes at the end. With NUMBER 0 nothing is killed.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from svc.ctl.main import main as svcctl
from svc.datastore.orch.client import Client

backup: Any = importlib.import_module("svc.upgrade.backup")
step_runner: Any = importlib.import_module("svc.upgrade.step_runner")
canary: Any = importlib.import_module("svc.upgrade.canary")
marks: Any = importlib.import_module("svc.move.marks")
etcd: Any = importlib.import_module("svc.datastore.etcd.store")
parallel: Any = importlib.import_module("svc.datastore.orch.parallel")
writes = 0


def main() -> None:
    number, when, file, *arguments = sys.argv[1:]
    arm(int(number), when)
    step_runner.POLL_SECONDS = step_runner.PAUSE_SECONDS = canary._POLL_SECONDS = 0.05
    marks.IN_FLIGHT_SECONDS = 0.0
    parallel.ParallelWriter._helpers = lambda *_: []
    sys.argv = ["svcctl", *arguments]
    try:
        svcctl()
    finally:
        Path(file).write_text(str(writes))


def arm(number: int, when: str) -> None:
    send, write_file, commit = Client._call, backup.replace, etcd.EtcdStore.write

    def counted(act: Callable[[], Any]) -> Any:
        global writes
        writes += 1
        here = writes == number
        if here and when != "after":
            os.kill(os.getpid(), signal.SIGKILL if when == "before" else signal.SIGINT)
        try:
            return act()
        finally:  # also after a write that is refused
            if here and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)

    def call(self: Client, method: str, path: str, *more: Any, **options: Any) -> Any:
        params = options.get("params") or (more[2] if len(more) > 2 else {}) or {}
        is_write = method != "GET" and "dryRun" not in params and threading.current_thread() is threading.main_thread()
        if not is_write:
            return send(self, method, path, *more, **options)
        return counted(lambda: send(self, method, path, *more, **options))

    Client._call = call  # type: ignore[method-assign]
    backup.replace = lambda *given: counted(lambda: write_file(*given))
    etcd.EtcdStore.write = lambda *given, **options: counted(lambda: commit(*given, **options))


if __name__ == "__main__":
    main()
