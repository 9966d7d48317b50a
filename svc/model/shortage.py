"""What the process, or the system, has run out of, in the same words wherever a call meets it."""

import errno
from typing import Final

from svc.model.errors import Code, PeerError

REMEDIES: Final = {  # by errno
    errno.EMFILE: "the agent has too many files open: raise its limit (LimitNOFILE)",
    errno.ENFILE: "the system has too many files open: raise fs.file-max",
}
_MEMORY: Final = "MemoryMax, LimitAS"
_NO_THREAD: Final = "can't start new thread"  # as Python says it


def shortage(failure: BaseException) -> PeerError | None:
    """Return what to raise in place of a failure for want of descriptors, memory or threads; None for any other failure."""
    if isinstance(failure, OSError) and failure.errno in REMEDIES:
        return PeerError(f"no file can be opened: {failure.strerror}", details=REMEDIES[failure.errno], code=Code.KERNEL)
    if isinstance(failure, MemoryError):
        return PeerError(
            "the system gives no further memory", details=f"raise the limits of the agent ({_MEMORY})", code=Code.KERNEL
        )
    if isinstance(failure, RuntimeError) and str(failure) == _NO_THREAD:
        return no_thread()
    return None


def no_thread() -> PeerError:
    """Return what to raise where the system gives the process no further thread."""
    return PeerError(
        "the system gives no further thread",
        details=f"raise the limits of the agent (TasksMax, pids.max, {_MEMORY})",
        code=Code.KERNEL,
    )
