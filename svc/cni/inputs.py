"""What goes into a call and what comes out of it, as the executable sees it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Inputs:
    """What the runtime gave to the executable, and the names profile that it was installed with (empty: our own names).

    `netns_fd` (-1: none) belongs to the call.
    """

    name: str
    environment: Mapping[str, str]
    stdin: bytes
    netns_fd: int = -1
    profile: str = ""

    def close(self) -> None:
        if self.netns_fd >= 0:
            os.close(self.netns_fd)
            self.netns_fd = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """What the executable does with it: exit status, standard output, standard error."""

    status: int
    stdout: bytes
    stderr: bytes
