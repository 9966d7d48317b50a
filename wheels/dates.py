"""The date of all files in wheels and sdist, so that two builds give the same bytes."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

_FIRST: Final = "315532800"  # 1980-01-01, the first date of a ZIP file
_LAST: Final = 4354819199  # 2107-12-31


def epoch(root: Path) -> int:
    """Return the date (Unix time), and give it to other tools: SOURCE_DATE_EPOCH, or that of the commit. Raise ValueError."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or _last_commit(root)
    if not (text.isascii() and text.isdecimal() and int(text) <= _LAST):
        wanted = f"set it to seconds since 1970, at most {_LAST}, or unset it: then it is the date of the commit"
        raise ValueError(f"SOURCE_DATE_EPOCH is {text!r}: {wanted}")
    os.environ["SOURCE_DATE_EPOCH"] = text
    return int(text)


def _last_commit(root: Path) -> str:
    """Return the date of the last commit; that of the first ZIP files outside of a repository, or without git."""
    if shutil.which("git") is None:
        return _FIRST
    command = ["git", "-C", str(root), "-c", "safe.directory=*", "log", "-1", "--format=%ct"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or _FIRST
