"""What goes into a call and what comes out of it, as the executable sees it."""

import os
from collections.abc import Mapping
from typing import Final

from svc.values import dataclass

INTENT: Final = "SVC_INTENT"
"""The variable of a repeated call: the generation of its row in the journal."""


@dataclass(slots=True)
class CallInput:
    """What the runtime gave to the executable, and the names profile that it was installed with (empty: our own names).

    `netns_fd` (-1: none) belongs to the call. `resumable`: the client repeats a call that is answered with an intent.
    """

    name: str
    environment: Mapping[str, str]
    stdin: bytes
    netns_fd: int = -1
    profile: str = ""
    resumable: bool = False

    @property
    def intent(self) -> int:
        """Of a repeated call; 0 for any other."""
        text = self.environment.get(INTENT, "")
        return int(text) if text.isdecimal() else 0

    def close(self) -> None:
        if self.netns_fd >= 0:
            os.close(self.netns_fd)
            self.netns_fd = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """What the executable does with it: exit status, standard output, standard error.

    With an `intent` the call is not answered: it waits for something, and is to be repeated elsewhere with that intent.
    """

    status: int
    stdout: bytes
    stderr: bytes
    intent: int = 0
