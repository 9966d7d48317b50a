"""Input and reply of a call, as the executable passes them."""

import os
from collections.abc import Mapping
from typing import Final

from svc.values import dataclass, field

PROTOCOL: Final = 2  # the newest layout of frames


@dataclass(slots=True)
class CallInput:
    """Input of the executable, and the names profile of its installation; an empty profile means the default names.

    A frame in the layout `protocol` carries it to an agent, perhaps with the namespace's descriptor. `version` is that of the
    executable. `continuation` is the intent of a repeated call. The call owns `netns_fd`; -1 means none.
    """

    name: str
    environment: Mapping[str, str]
    stdin: bytes
    has_descriptor: bool = False
    profile: str = ""
    continuation: bytes = b""
    protocol: int = PROTOCOL
    version: str = field(default="", compare=False)
    netns_fd: int = field(default=-1, compare=False)

    @property
    def resumable(self) -> bool:
        """Whether the client repeats a call that is answered with an intent. Layout 1 has no such answer."""
        return self.protocol == PROTOCOL

    @property
    def intent(self) -> int:
        """The generation of the journal row of a repeated call, 0 for any other call."""
        return int(self.continuation) if self.continuation.isdigit() else 0

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
