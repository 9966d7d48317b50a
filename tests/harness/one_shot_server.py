"""Server that forks processes for calls without an agent: most of the time of their start is the import of svc.

    python -I one_shot_server.py MODULE...

Standard input is a listening socket. `one_shot.c` is the client, in place of Python. It sends the umask, the resource limits,
the arguments and the environment as texts that end with a zero byte, and descriptors of the standard files, the network and
mount namespaces and the working directory. The reply is the exit status. The forked process is killed when the client ends.
"""

import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence

sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))  # not with the option -I

from harness.fork_server import end_process, separate_indexes

_MAX_BYTES = 1 << 17
_LIMITS = 16  # RLIM_NLIMITS of Linux
_MODULE = "svc.cni"


def main() -> None:
    """Fork a process for each client, until this process is killed."""
    before = dict(os.environ)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    added = {name: value for name, value in os.environ.items() if name not in before}  # by svc, for gRPC
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes go by themselves
    listener = socket.socket(fileno=0)
    while True:
        client, _ = listener.accept()
        text, descriptors, _, _ = socket.recv_fds(client, _MAX_BYTES, 6)
        if text and os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _carry_out(client, os.fsdecode(text).split("\0")[:-1], descriptors, added)
        for descriptor in descriptors:
            os.close(descriptor)
        client.close()


def _carry_out(client: socket.socket, texts: Sequence[str], descriptors: Sequence[int], added: dict[str, str]) -> None:
    _enter(descriptors)
    threading.Thread(target=_end_with, args=(client,), daemon=True).start()
    fields = iter(texts)
    os.umask(int(next(fields), 8))
    for number in range(_LIMITS):
        soft, hard = map(int, next(fields).split())
        resource.setrlimit(number, (soft, hard))
    arguments = [next(fields) for _ in range(int(next(fields)))]
    sys.argv = arguments[arguments.index(_MODULE) :]
    os.environ.clear()
    os.environ.update({**added, **dict(_pairs(fields))})
    separate_indexes()
    status = _status()
    end_process(status, lambda: client.send(bytes([status])))


def _status() -> int:
    try:
        return int(sys.modules[f"{_MODULE}.__main__"].main())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _enter(descriptors: Sequence[int]) -> None:
    """Enter the namespaces and the directory of the client, and take its standard files."""
    library = ctypes.CDLL(None, use_errno=True)
    *files, net, mount, directory = descriptors
    for namespace in (net, mount):
        if library.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "cannot enter a namespace")
    os.fchdir(directory)
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)


def _pairs(entries: Iterator[str]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        name, _, value = entry.partition("=")
        yield name, value


def _end_with(client: socket.socket) -> None:
    """Kill this process when the client ends."""
    if not client.recv(1):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
