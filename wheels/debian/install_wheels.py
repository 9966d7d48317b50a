"""Install wheels into a folder of the package: install_wheels.py ROOT LIBRARY WHEEL ...

Programs go to ROOT/bin, modules to ROOT/LIBRARY. Programs start with the Python of the installed package.
"""

import sys
from pathlib import Path

import installer
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

PYTHON = "/usr/lib/svc/bin/python3"


def main() -> None:
    root, library, *wheels = sys.argv[1:]
    if not wheels:
        sys.exit(f"{library}: no wheel is there for this machine: `make deb` fetches them")
    modules = str(Path(root) / library)
    places = {"purelib": modules, "platlib": modules, "scripts": str(Path(root) / "bin")}
    places |= {name: str(Path(root) / "share" / name) for name in ("data", "headers")}
    for wheel in wheels:
        destination = SchemeDictionaryDestination(places, interpreter=PYTHON, script_kind="posix")
        with WheelFile.open(wheel) as source:
            installer.install(source, destination, {"INSTALLER": b"dpkg\n"})


if __name__ == "__main__":
    main()
