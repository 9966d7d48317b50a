"""File descriptors of this process: whether some are left."""

import os
from contextlib import ExitStack


def require_descriptors(number: int) -> None:
    """Open so many files and close them again. OSError if that is not possible: EMFILE or ENFILE."""
    with ExitStack() as opened:
        for _ in range(number):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
