"""Keep what `svcctl install` has written on this node in step with the package: refresh or leave.

refresh (after an upgrade): install the executables again, with the options that they were installed with.
leave (before a removal): uninstall. Where containers are still attached, the executables stay, and leave their DELs for the
agent of the next installation: each succeeds, and its addresses are released then.

Both concern the installations with this package's Python, for the default state directory.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from svc.admin.install_records import recorded_settings
from svc.admin.node_state import read_attachments
from svc.attach.record import DELETING
from svc.model.errors import SvcError
from svc.names import DEFAULT
from svc.netconf.installed import Installed, read_installed
from svc.netconf.names_profiles import load_profile

PROGRAM = Path(sys.executable).with_name("svcctl")
STATE_DIR = Path(DEFAULT.state_dir)
WAIT_SECONDS = 1  # for an agent, which is not there: then a DEL is left for the next one


def refresh() -> None:
    """Install the executables of this version."""
    for entry in _own():
        _svcctl(entry, "install")


def leave() -> None:
    """Uninstall what no container needs. Say which containers are still attached."""
    for entry in _own():
        attached = [each for each in read_attachments(STATE_DIR, entry.profile) if each.state != DELETING]
        if not attached:
            _svcctl(entry, "uninstall")
            continue
        _svcctl(entry, "install", "--wait", str(WAIT_SECONDS))
        print(
            f"warning: attachments of containers that still run: {len(attached)}. The plugins in {entry.bin_dir} stay for "
            "their DELs, which succeed: their addresses are released when svc-cni is installed again, from the state in "
            f"{STATE_DIR}. "
            "New containers do not start until then. Before you remove the plugins, delete these containers."
        )


def _own() -> Iterator[Installed]:
    for entry in read_installed(STATE_DIR):
        names = load_profile(entry.profile)
        if recorded_settings(Path(entry.bin_dir), names).get("python") == sys.executable:
            yield entry


def _svcctl(entry: Installed, command: str, *options: str) -> None:
    profile = ["--names", entry.profile] if entry.profile else []
    words = ["--state-dir", str(STATE_DIR), command, "--bin-dir", entry.bin_dir, *profile, *options]
    subprocess.run([str(PROGRAM), *words], check=True)


if __name__ == "__main__":
    try:
        {"refresh": refresh, "leave": leave}[sys.argv[1]]()
    except SvcError as error:
        sys.exit(error.as_text())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
