"""Errors for the runtime, classified by their cause.

Codes 1 to 99 are those of the CNI specification (section 2, "Error"); from 100 on they are specific to svc.
`docs/reference/errors.md` lists them for users. An `SvcError` is raised once, where the cause is known, and is never wrapped in
another one.
"""

from enum import IntEnum


class Code(IntEnum):
    """Error codes of CNI and of svc."""

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


def reason_of(error: Exception) -> str:
    """Return the text of an error. That of an OSError is its cause and its file, without the number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {str(error.filename)!r}"


class SvcError(Exception):
    """An error: `msg` says what failed in one line, `details` gives cause and fix. Another plugin's error keeps its code."""

    code: int = Code.INTERNAL
    subject: str = ""  # with `errors`: the input that they are about
    errors: tuple[str, ...] = ()  # each with field and fix, for readers of more than one line

    def __init__(self, msg: str, *, details: str = "", code: int | None = None) -> None:
        super().__init__(msg)
        self.msg = msg
        self.details = details
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.msg}: {self.details}" if self.details else self.msg

    def as_text(self) -> str:
        """Return one line, or a line for each of several field errors."""
        lines = [" ".join(line.split()) for line in self.errors or (str(self),)]
        if not self.errors:
            return lines[0]
        head = f"{self.subject}: "
        return head + lines[0] if len(lines) == 1 else "\n  ".join([f"{head}{len(lines)} errors", *lines])


class CallerError(SvcError):
    """An error in the environment, the network configuration or the request. Nothing was changed."""

    code = Code.INVALID_NETCONF


class PeerError(SvcError):
    """A failure or refusal of the kernel, the datastore or another plugin."""

    code = Code.DATASTORE
    lacks_right = False  # whether the server accepts the credentials, but denies them this request


class PluginError(PeerError):
    """An error that another plugin has reported: its code, message and details."""

    code = Code.DELEGATE


class InternalError(SvcError):
    """A bug in svc: report it with the log lines of the request."""

    code = Code.INTERNAL
