"""svc: a container network plugin (CNI) with its own IPAM, agent and command line."""

import os
import sys

__distribution__ = "svc-cni"  # the name on package indexes, where `svc` is another project

__version__: str


def __getattr__(name: str) -> str:
    """Look up `__version__` on first use, which a one-shot call does not need."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version = globals()["__version__"] = installed_version()  # cached: an upgrade does not change the running code
    return version


def installed_version() -> str:
    """Return the version of the installed package.

    It is in the name of the directory that installers make. Importing importlib.metadata costs 25 ms and 2 MiB."""
    found = _versions()
    if len(found) == 1:
        return found[0]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__distribution__)
    except PackageNotFoundError:  # a source tree that is not installed
        return "0.0.0"


def _versions() -> list[str]:
    """Return the versions of the package in the first directory of the path that has any."""
    prefix, suffix = f"{__distribution__.replace('-', '_')}-", ".dist-info"
    for folder in sys.path:
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:  # it does not exist, or is an archive
            continue
        if found := [name[len(prefix) : -len(suffix)] for name in names if name.startswith(prefix) and name.endswith(suffix)]:
            return found
    return []
