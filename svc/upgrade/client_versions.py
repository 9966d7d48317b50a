"""Other installations of svcctl on the PATH of the user."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from svc import __version__
from svc.admin.version_order import order_of

PROGRAM: Final = "svcctl"
_SECONDS: Final = 10


def installed(path: str) -> Iterator[tuple[str, str]]:
    """Yield each svcctl of a PATH with its version; empty if it does not tell. Links to one file count once."""
    seen: set[Path] = set()
    for folder in path.split(os.pathsep):
        found = shutil.which(PROGRAM, path=folder or os.curdir)
        if found is None or Path(found).resolve() in seen:
            continue
        seen.add(Path(found).resolve())
        yield found, _version_of(found)


def listed(path: str) -> list[str]:
    """Return a text for each svcctl of a PATH."""
    return [f"{place}: {version or 'unknown'}" for place, version in installed(path)]


def older(path: str) -> list[str]:
    """Return a sentence for each svcctl of a PATH that is older than this one."""
    own = order_of(__version__)
    found = ((place, version, order_of(version)) for place, version in installed(path))
    return [
        f"{place} is svcctl {version}, and this one is {__version__}: replace it"
        for place, version, order in found
        if order is not None and own is not None and order < own
    ]


def _version_of(program: str) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().rpartition(" ")[2] if done.returncode == 0 else ""
