"""Server that forks agents: most of the time of their start is the import of svc, which happens here once.

    python -I fork_server.py MODULE...

Standard input is a socket. Each datagram orders a process: a JSON object, and the descriptors of its standard input, output and
error, and of its network namespace. The reply is its process ID. The process is an orphan, so the subreaper is its parent.
"""

import atexit
import ctypes
import gc
import importlib
import itertools
import json
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

_MAX_BYTES = 1 << 20
_CLONE_NEWNET = 0x40000000


def main() -> None:
    """Fork until the client closes its socket. In a forked process, run its program and return."""
    before = dict(os.environ)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # otherwise a collection in each forked process traverses, and thus copies, all objects
    added = {name: value for name, value in os.environ.items() if name not in before}  # by svc, for gRPC
    orders = socket.socket(fileno=0)
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, _MAX_BYTES, 4)
        if not text:
            return None
        if (pid := _fork_orphan()) == 0:
            orders.detach()
            return _run(json.loads(text), descriptors, added)
        for descriptor in descriptors:
            os.close(descriptor)
        orders.send(str(pid).encode())


def _fork_orphan() -> int:
    """Return the process ID of a grandchild whose parent has ended, and 0 in the grandchild."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        if pid := os.fork():
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.close(reader)
        os.close(writer)
        return 0
    os.close(writer)
    os.waitpid(parent, 0)
    pid = int(os.read(reader, 20))
    os.close(reader)
    return pid


def _run(order: dict[str, Any], descriptors: list[int], added: dict[str, str]) -> None:
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    if ctypes.CDLL(None, use_errno=True).setns(descriptors[3], _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(order["directory"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(added | order["environment"])
    sys.argv = order["arguments"]
    separate_indexes()
    with open("/proc/self/comm", "w") as name:  # for ps
        name.write(os.path.basename(sys.argv[0]))
    try:
        exec(order["program"], {"__name__": "__main__"})
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        end_process(end.code)


def separate_indexes() -> None:
    """Choose other indexes of interfaces. They are the only state that a process chooses when it imports svc."""
    if wire := sys.modules.get("svc.dataplane.wire"):
        vars(wire)["_indexes"] = itertools.count(random.randrange(1 << 17, 1 << 29))


def end_process(status: int, announce: Callable[[], object] = lambda: None) -> None:
    """End the process as the interpreter does, but without the deletion of all objects, which takes 280 ms."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    announce()
    os._exit(status)


if __name__ == "__main__":
    main()
