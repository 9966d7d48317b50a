"""Check for free file descriptors of this process."""

import os
from contextlib import ExitStack


def require_descriptors(number: int) -> None:
    """Open and close `number` files. Raise OSError (EMFILE or ENFILE) if that fails."""
    with ExitStack() as opened:
        for _ in range(number):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
