"""How a user installs what an extra of the distribution brings."""

import sys

from svc import __distribution__

_PACKAGED = "dpkg"  # what the Debian package names as its installer


def install_command(extra: str) -> str:
    """Return the command that installs an extra, with the tool that has installed svc."""
    from importlib.metadata import PackageNotFoundError, distribution  # takes 25 ms, and few programs need it

    try:
        installer = (distribution(__distribution__).read_text("INSTALLER") or "").strip()
    except PackageNotFoundError:  # a source tree that is not installed
        installer = ""
    if installer == _PACKAGED:
        return f"apt install {__distribution__}-{extra}"
    return f"{sys.executable} -m pip install '{__distribution__}[{extra}]'"
