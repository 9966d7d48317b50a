"""svc-routes on a node of the benchmark: its process, its processor time, and what it reports."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.routes_site import OWN, READY_SECONDS
from bench.testbed import Failed
from harness.datastores import Site
from harness.node import netconf
from svc.admin.routes_report import SOCKET, read_report
from svc.model.errors import PeerError

_STOP_SECONDS = 20.0
_QUIET_SECONDS = 2.0


class RoutesProcess:
    """A process in the network namespace of the calling thread. `folder` outlives it."""

    def __init__(self, folder: Path, site: Site, *options: str, name: str = OWN) -> None:
        self._socket = folder / "run" / SOCKET
        self.log = folder / "routes.log"
        file = folder / "netconf.json"
        file.write_text(json.dumps(netconf(nodename=name, **site.administration)))
        folders = ["--netconf", str(file), "--state-dir", str(folder), "--run-dir", str(folder / "run")]
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "svc.routes.main", "run", "--mode", "on", *folders, *options]
            self.began = time.monotonic()
            self._process = subprocess.Popen(command, stderr=log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def report(self) -> dict[str, Any]:
        """Return what it reports; empty while it does not answer."""
        try:
            return read_report(self._socket)
        except PeerError:
            return {}

    def await_reasons(self, *reasons: str) -> None:
        """Wait until all networks have one of these reasons."""
        until = time.monotonic() + READY_SECONDS
        while not (found := {row["reason"] for row in self.report().get("networks", ())}) or found - set(reasons):
            if time.monotonic() > until or self._process.poll() is not None:
                raise Failed(f"svc-routes has {sorted(found)}: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def await_settled(self) -> None:
        """Wait until it uses no processor time, at the end of what follows the start."""
        until, used = time.monotonic() + READY_SECONDS, -1.0
        while (present := self.cpu_seconds()) != used and time.monotonic() < until:
            used = present
            time.sleep(_QUIET_SECONDS)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait(_STOP_SECONDS)
