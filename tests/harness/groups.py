"""Control groups that containers leave behind when they are ended all at once."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PATIENCE = 20.0  # seconds
_ROOT = Path("/sys/fs/cgroup")


class Groups:
    """Those below a group of this name, in every hierarchy. What is there already is somebody else's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._others = self._present()

    def remove(self) -> None:
        """For when the processes inside are ended, of which the kernel is told a little later."""
        until = time.monotonic() + PATIENCE
        while (left := self._present() - self._others) and time.monotonic() < until:
            for group in sorted(left, reverse=True):
                with suppress(OSError):  # not empty yet
                    group.rmdir()

    def _present(self) -> set[Path]:
        tops = [top for pattern in (self._name, f"*/{self._name}") for top in _ROOT.glob(pattern)]
        return {group for top in tops for group in _groups(top)}


def can_be_made() -> bool:
    return any(os.access(group, os.W_OK) for group in _groups(_ROOT))


def _groups(top: Path) -> Iterator[Path]:
    """It and those below; such as are removed meanwhile are passed over."""
    return (Path(folder) for folder, _, _ in os.walk(top))
