"""Errors for a lack of resources in the process or the system."""

import errno
import os
from typing import Final

from svc.model.errors import Code, PeerError

REMEDIES: Final = {  # by errno
    errno.EMFILE: "the agent has too many files open: raise its limit (LimitNOFILE)",
    errno.ENFILE: "the system has too many files open: raise fs.file-max",
}
_MEMORY: Final = "MemoryMax, LimitAS"
_NO_THREAD: Final = "can't start new thread"  # the message of Python


def shortage(failure: BaseException) -> PeerError | None:
    """Return the error for a lack of descriptors, memory or threads; None for any other failure."""
    if isinstance(failure, OSError) and failure.errno in REMEDIES:
        return PeerError(f"no file can be opened: {failure.strerror}", details=REMEDIES[failure.errno], code=Code.KERNEL)
    if isinstance(failure, MemoryError):
        return PeerError(
            "the system gives no further memory", details=f"raise the limits of the agent ({_MEMORY})", code=Code.KERNEL
        )
    if isinstance(failure, RuntimeError) and str(failure) == _NO_THREAD:
        return no_thread()
    return None


def shortage_remedy(text: str) -> str:
    """Return the fix if a library's message names a lack of descriptors; otherwise an empty string."""
    named = [number for number in REMEDIES if os.strerror(number) in text]
    return REMEDIES[max(named, key=lambda number: len(os.strerror(number)))] if named else ""  # one text begins the other


def no_thread() -> PeerError:
    """Return the error for a lack of threads."""
    return PeerError(
        "the system gives no further thread",
        details=f"raise the limits of the agent (TasksMax, pids.max, {_MEMORY})",
        code=Code.KERNEL,
    )
