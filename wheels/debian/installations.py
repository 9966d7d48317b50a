"""Keep what `svcctl install` has written on this node in step with the package: refresh or leave.

refresh (after an installation or upgrade): install the executables again, with the options that they were installed with.
leave (before a removal): uninstall. Where containers are still attached, the executables stay, and leave their DELs for the
agent of the next installation: each succeeds, and its addresses are released then.

Both concern the installations with this package's Python, for the default state directory.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from svc.admin.install_records import recorded_settings, recorded_wait
from svc.admin.node_state import read_attachments
from svc.attach.record import DELETING
from svc.model.errors import SvcError
from svc.names import DEFAULT
from svc.netconf.installed import Installed, read_installed
from svc.netconf.names_profiles import load_profile

PROGRAM = Path(sys.executable).with_name("svcctl")
STATE_DIR = Path(DEFAULT.state_dir)
LEFT = STATE_DIR / "left-by-package.json"  # how long calls waited for an agent before a removal, by directory and profile
WAIT_SECONDS = 1  # for an agent, which is not there: then a DEL is left for the next one


def refresh() -> None:
    """Install the executables of this version. Those that a removal has left wait for an agent as before."""
    waits = _left()
    for entry in _own():
        wait = waits.get(_key(entry))
        _svcctl(entry, "install", *([] if wait is None else ["--wait", str(wait)]))
    LEFT.unlink(missing_ok=True)


def leave() -> None:
    """Uninstall what no container needs. Say which containers are still attached."""
    for entry in _own():
        attached = [each for each in read_attachments(STATE_DIR, entry.profile) if each.state != DELETING]
        if not attached:
            _svcctl(entry, "uninstall")
            continue
        waits = {_key(entry): recorded_wait(Path(entry.bin_dir), load_profile(entry.profile))} | _left()
        LEFT.write_text(json.dumps(waits))
        _svcctl(entry, "install", "--wait", str(WAIT_SECONDS))
        print(
            f"warning: attachments of containers that still run: {len(attached)}. The plugins in {entry.bin_dir} stay for "
            "their DELs, which succeed: their addresses are released when svc-cni is installed again, from the state in "
            f"{STATE_DIR}. "
            "New containers do not start until then. Before you remove the plugins, delete these containers."
        )


def _left() -> dict[str, int]:
    found: dict[str, int] = json.loads(LEFT.read_text()) if LEFT.exists() else {}
    return found


def _key(entry: Installed) -> str:
    return f"{entry.bin_dir} {entry.profile}"


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
