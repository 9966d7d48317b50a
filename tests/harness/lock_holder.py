"""Another process, optionally of another user, that holds a lock on a file."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_HOLD = """
import fcntl, os, sys
path, kind = sys.argv[1:]
if os.getuid() == 0 and kind == "user": os.setuid(65534)
file = os.open(path, os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX if kind != "shared" else fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by(path: Path, kind: str = "root") -> Iterator[int]:
    """Hold the lock of the file in another process; yield its pid. The kind `user` is a process of the user `nobody`."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdin
            process.stdin.close()


def open_to_all(folder: Path) -> None:
    """Let every user enter the folder of a test."""
    while folder != Path("/tmp"):
        if folder == folder.parent:
            pytest.skip("the tests' folder is not in /tmp")
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)
        folder = folder.parent
