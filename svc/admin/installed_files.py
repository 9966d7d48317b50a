"""Files that `svcctl install` wrote, and that another program has removed since."""

import os
from collections.abc import Iterator
from pathlib import Path

from svc.netconf.installed import Installed, read_installed


def missing_files(state_dir: Path) -> list[str]:
    """Return the executables and network lists that are missing in directories that exist. Raise SvcError.

    An installer in a container may have other directories. They are not known here.
    """
    return [str(path) for entry in read_installed(state_dir) for path in _files(entry) if _is_missing(path)]


def _files(entry: Installed) -> Iterator[Path]:
    yield from (Path(entry.bin_dir, name) for name in entry.executables)
    if entry.network_list and not (entry.host_network_list and Path(entry.host_network_list).exists()):
        yield Path(entry.network_list)


def _is_missing(path: Path) -> bool:
    return path.parent.is_dir() and not os.path.lexists(path)
