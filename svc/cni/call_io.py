"""Input and reply of a call, as the executable passes them."""

import os
from collections.abc import Mapping
from typing import Final

from svc.values import dataclass

INTENT: Final = "SVC_INTENT"
"""Environment variable of a repeated call: the generation of its journal entry."""


@dataclass(slots=True)
class CallInput:
    """Input of the executable, and the names profile of its installation; an empty profile means the default names.

    The call owns `netns_fd`; -1 means none. `resumable` is true if the client repeats a call that is answered with an intent.
    """

    name: str
    environment: Mapping[str, str]
    stdin: bytes
    netns_fd: int = -1
    profile: str = ""
    resumable: bool = False

    @property
    def intent(self) -> int:
        """Return the intent of a repeated call, 0 for any other call."""
        text = self.environment.get(INTENT, "")
        return int(text) if text.isdecimal() else 0

    def close(self) -> None:
        if self.netns_fd >= 0:
            os.close(self.netns_fd)
            self.netns_fd = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """Exit status and output for the executable. With an `intent` the call still waits: the client repeats it with that."""

    status: int
    stdout: bytes
    stderr: bytes
    intent: int = 0
