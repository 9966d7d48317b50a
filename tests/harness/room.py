"""The room that a whole run of the tests needs: without it thousands of tests fail, and none says why."""

import os
from pathlib import Path

NEEDED_GIB = 6  # a whole run writes up to 4, and has the programs that it builds for the image


def why_too_small(folder: Path) -> str:
    """Return that the folder has too little room, and the remedy; empty if it has enough."""
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize / 2**30
    if free >= NEEDED_GIB:
        return ""
    return f"{folder} has {free:.1f} GiB of room, and a whole run of the tests needs {NEEDED_GIB}: free some, or set TMPDIR"
