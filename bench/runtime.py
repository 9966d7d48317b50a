"""The runtime of the benchmark as Python sees it: calls in, timed outcomes out. `runtime.c` does the work."""

import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_EXECUTE, _CONNECT = 0, 1
_CALL = struct.Struct("=5I")
_ANSWER = struct.Struct("=qqIII")


@dataclass(frozen=True, slots=True)
class Call:
    """A program to execute, or with `connects` a socket that gets `stdin` and a descriptor of `netns`."""

    program: str
    environment: Mapping[str, str]
    stdin: bytes
    connects: bool = False
    netns: str = ""

    def packed(self) -> bytes:
        environment = b"".join(f"{key}={value}".encode() + b"\0" for key, value in self.environment.items())
        parts = self.program.encode() + b"\0", environment, self.stdin, self.netns.encode() + b"\0"
        return b"".join((_CALL.pack(_CONNECT if self.connects else _EXECUTE, *map(len, parts)), *parts))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The times of a call in nanoseconds of the monotonic clock, and its output."""

    started: int
    ended: int
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def ms(self) -> float:
        return (self.ended - self.started) / 1e6


class Runtime:
    """A process inside `netns`. The programs that it executes inherit the namespace."""

    def __init__(self, program: Path, netns: str) -> None:
        self.program = program
        self._process = subprocess.Popen([str(program), netns], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, calls: Sequence[Call], at_once: int = 1) -> list[Outcome]:
        """Run the calls, and return their outcomes in order. The calls start in order, `at_once` at a time."""
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("=II", at_once, len(calls)) + b"".join(call.packed() for call in calls))
        self._process.stdin.flush()
        return [self._outcome() for _ in calls]

    def one(self, call: Call) -> Outcome:
        return self.run([call])[0]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _outcome(self) -> Outcome:
        started, ended, status, out_size, err_size = _ANSWER.unpack(self._read(_ANSWER.size))
        return Outcome(started, ended, status, self._read(out_size), self._read(err_size))

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise RuntimeError(f"the benchmark's runtime ended with status {self._process.wait(60)}")
        return data


def wall_ms(outcomes: Sequence[Outcome]) -> float:
    """Return the time from the first start to the last end."""
    return (max(outcome.ended for outcome in outcomes) - min(outcome.started for outcome in outcomes)) / 1e6
