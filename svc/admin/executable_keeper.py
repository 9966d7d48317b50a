"""Put executables and their records back that another program has removed.

The network list is left out: a program that takes the network over removes it on purpose.
"""

import os
from pathlib import Path
from typing import Final

from svc.admin.install_records import record_paths
from svc.admin.installation import Installation
from svc.admin.repeated_task import Report
from svc.atomic_file import File, file_version, write
from svc.netconf.installed import read_installed

LOOK_SECONDS: Final = 5.0  # between two looks


class ExecutableKeeper:
    """Holds the files as they were when they were last there: a later installation may replace them. Not thread-safe."""

    def __init__(self, wanted: Installation, report: Report) -> None:
        self._wanted = wanted
        self._report = report
        self._versions: dict[Path, object] = {}
        self._held: dict[Path, File] = {}
        self._missed: set[Path] = set()  # at the last look

    def look(self) -> float:
        """Write files that two looks in a row have missed. Return the seconds until the next look. Raise SvcError, OSError.

        `svcctl uninstall` removes the entry in the state directory soon after the files: nothing is written until a second look
        finds the entry.
        """
        missing = [path for path in self._paths() if not self._hold(path)]
        again = [self._held[path] for path in missing if path in self._missed and path in self._held]
        self._missed = set(missing)
        if again and self._is_recorded():
            for file in again:
                write(file)
                self._report(f"{file.path} put back: another program removed it", False)
        return LOOK_SECONDS

    def _hold(self, path: Path) -> bool:
        """Read a file that has changed. Return False if it is missing in a directory that exists."""
        if not os.path.lexists(path):
            return not path.parent.is_dir()
        version = file_version(path)
        if version != self._versions.get(path):
            self._held[path] = File(path, path.read_bytes(), path.stat().st_mode & 0o777)
            self._versions[path] = version
        return True

    def _paths(self) -> list[Path]:
        """Return the records before the executables, which need them."""
        names, bin_dir = self._wanted.names, self._wanted.bin_dir
        return [*record_paths(bin_dir, names), bin_dir / names.ipam_plugin, bin_dir / names.plugin]

    def _is_recorded(self) -> bool:
        key = self._wanted.record.key
        return any(entry.key == key for entry in read_installed(self._wanted.state_dir))
