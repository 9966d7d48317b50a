"""Control groups of containers. They remain when a test kills all containers at once."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

TIMEOUT_SECONDS: Final = 20.0
ROOT: Final = Path("/sys/fs/cgroup")


class Groups:
    """The groups below one parent, in every hierarchy. No other program uses the name of the parent."""

    def __init__(self) -> None:
        self.parent: Final = f"/svc-tests-{uuid.uuid4().hex}"

    def remove(self) -> None:
        """Remove the groups after their processes were killed. The kernel removes the processes a little later."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while (left := self._present()) and time.monotonic() < until:
            for group in sorted(left, reverse=True):
                with suppress(OSError):  # not empty yet
                    group.rmdir()

    def _present(self) -> set[Path]:
        tops = [top for pattern in (self.parent[1:], f"*{self.parent}") for top in ROOT.glob(pattern)]
        return {group for top in tops for group in _groups(top)}


def can_be_made() -> bool:
    return any(os.access(group, os.W_OK) for group in _groups(ROOT))


def _groups(top: Path) -> Iterator[Path]:
    """Yield the group and those below it; a group that disappears during the walk is left out."""
    return (Path(folder) for folder, _, _ in os.walk(top))
