"""The one error that travels to the runtime, sorted by whose fault it is.

Codes are those of the CNI specification (section 2, "Error"; 1..99) and ours from 100 on; `docs/reference/errors.md`
lists them for users. An `SvcError` is raised once, where the cause is known, and never wrapped in another one.
"""

from enum import IntEnum


class Code(IntEnum):
    """CNI error codes."""

    INCOMPATIBLE_VERSION = 1
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    DECODING_FAILURE = 6
    INVALID_NETCONF = 7
    INVALID_NETNS = 8
    TRY_AGAIN = 11
    NOT_AVAILABLE = 50
    INTERNAL = 100
    NO_ADDRESS = 101
    POOL = 102
    ADDRESS_UNAVAILABLE = 103
    DATASTORE = 104
    DATASTORE_LOCKED = 105
    KERNEL = 106
    CHECK_FAILED = 107
    INTERFACE_EXISTS = 108
    CONCURRENCY = 109
    SHUTTING_DOWN = 110
    ORCHESTRATOR = 111
    ANNOTATION = 112
    DELEGATE = 114
    GATES_CLOSED = 115
    NODE_CLAIMED = 116


class SvcError(Exception):
    """What went wrong (`msg`, one line), why and what to do about it (`details`), and its code, which for an error that another
    plugin has told is that plugin's."""

    code: int = Code.INTERNAL
    subject: str = ""  # with `faults`: what they are about
    faults: tuple[str, ...] = ()  # each with its place and its remedy, for readers who have more than one line

    def __init__(self, msg: str, *, details: str = "", code: int | None = None) -> None:
        super().__init__(msg)
        self.msg = msg
        self.details = details
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.msg}: {self.details}" if self.details else self.msg


class CallerError(SvcError):
    """The call is wrong: its environment, its netconf, its request. Nothing was changed."""

    code = Code.INVALID_NETCONF


class PeerError(SvcError):
    """Something that we depend on refused or failed: the kernel, the datastore, a delegate."""

    code = Code.DATASTORE


class PluginError(PeerError):
    """Another plugin has answered with an error: its own code, message and details."""

    code = Code.DELEGATE


class InternalError(SvcError):
    """Our own mistake: please report it with the log lines of its request id."""

    code = Code.INTERNAL
