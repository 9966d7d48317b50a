"""Programs whose wall clock jumps while they run. Other clocks, and those of other programs, stay as they are."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_NUMBERS = struct.Struct("=qqq")  # the seconds of even and of odd readings, and the number of readings


class JumpingClock:
    """A clock in a folder."""

    def __init__(self, folder: Path) -> None:
        self._file, self._library = folder / "clock", folder / "clock.so"
        self.jump(0)
        source = Path(__file__).with_suffix(".c")
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror")
        subprocess.run([shutil.which("gcc") or "cc", *flags, "-o", self._library, source], check=True)

    def jump(self, seconds: int, back: int | None = None) -> None:
        """Let the clock be late or early by some seconds; by others at each second reading, if they are given."""
        count = self.readings if self._file.exists() else 0
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(_NUMBERS.pack(seconds, seconds if back is None else back, count))

    @property
    def readings(self) -> int:
        """How often the programs have read the clock."""
        return int(_NUMBERS.unpack(self._file.read_bytes())[2])

    @contextmanager
    def started(self, program: str, words: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
        """Run a Python program in the block, by this clock."""
        environment = os.environ | {"LD_PRELOAD": str(self._library), "CLOCK_FILE": str(self._file)}
        command, pipe = [sys.executable, "-c", program, *words], subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
            try:
                yield process
            finally:
                process.kill()
