"""Put executables and their records back that another program has removed.

The network list is left out: a program that takes the network over removes it on purpose.
"""

import os
from pathlib import Path
from typing import Final

from svc.admin.install_records import record_paths
from svc.admin.installation import Installation
from svc.admin.repeated_task import Report
from svc.atomic_file import File, write
from svc.netconf.installed import read_installed

LOOK_SECONDS: Final = 5.0  # between two looks


class ExecutableKeeper:
    """Holds the files as they are at the first look. Not thread-safe."""

    def __init__(self, wanted: Installation, report: Report) -> None:
        self._wanted = wanted
        self._report = report
        self._files: list[File] = []  # records before executables
        self._missed: list[Path] = []  # at the last look

    def look(self) -> float:
        """Write files that two looks in a row have missed. Return the seconds until the next look. Raise SvcError, OSError.

        `svcctl uninstall` removes the files before their entry in the state directory: nothing is written until a second look
        finds the entry.
        """
        if not self._files:
            self._files = [_read(path) for path in self._paths()]
        missing = [file for file in self._files if _is_missing(file.path)]
        again = [file for file in missing if file.path in self._missed]
        self._missed = [file.path for file in missing]
        if again and self._is_recorded():
            for file in again:
                write(file)
                self._report(f"{file.path} put back: another program removed it", False)
        return LOOK_SECONDS

    def _paths(self) -> list[Path]:
        names, bin_dir = self._wanted.names, self._wanted.bin_dir
        return [*record_paths(bin_dir, names), bin_dir / names.ipam_plugin, bin_dir / names.plugin]

    def _is_recorded(self) -> bool:
        key = self._wanted.record.key
        return any(entry.key == key for entry in read_installed(self._wanted.state_dir))


def _read(path: Path) -> File:
    return File(path, path.read_bytes(), path.stat().st_mode & 0o777)


def _is_missing(path: Path) -> bool:
    return path.parent.is_dir() and not os.path.lexists(path)
