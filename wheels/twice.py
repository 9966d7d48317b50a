"""Build twice and compare: python -m wheels.twice [TARGET ...].

The commit of this repository is cloned into two folders whose paths differ in length, and built in each with caches of its own.
Exit status: 0 both have the same files with the same bytes, 1 they have not, or a build failed, 2 wrong use.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from wheels.targets import add_targets

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Build what the command line asks for twice. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wheels.twice", description=__doc__)
    add_targets(parser)
    targets = parser.parse_args().targets
    with tempfile.TemporaryDirectory() as name:
        try:
            first, second = (_build(Path(name) / place, targets) for place in ("one", "another/folder"))
        except subprocess.CalledProcessError as error:
            print(f"{error.cmd[0]} failed with status {error.returncode}: its reason is above", file=sys.stderr)
            return 1
        found = list(differences(first, second))
        for path in sorted(first.iterdir()):
            print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    print("\n".join(found) or "both builds have the same bytes")
    return bool(found)


def differences(first: Path, second: Path) -> Iterator[str]:
    """Yield how the files of two folders differ."""
    names = {path.name for path in (*first.iterdir(), *second.iterdir())}
    if not names:
        yield "nothing was built"
    for name in sorted(names):
        one, other = first / name, second / name
        if not (one.exists() and other.exists()):
            yield f"{name} is only in one of the builds"
        elif one.read_bytes() != other.read_bytes():
            yield f"{name} differs: {', '.join(_members(one, other)) or 'not in its members'}"


def _members(one: Path, other: Path) -> Iterator[str]:
    """Yield the members that differ, if both files are archives as wheels are."""
    if not (zipfile.is_zipfile(one) and zipfile.is_zipfile(other)):
        return
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        for name in sorted({*first.namelist(), *second.namelist()}):
            is_in_both = name in first.namelist() and name in second.namelist()
            if not is_in_both or first.read(name) != second.read(name):
                yield name


def _build(folder: Path, targets: list[str]) -> Path:
    """Clone and build in a folder. Return the folder of the wheels. Raise CalledProcessError."""
    clone, out = folder / "svc", folder / "wheels"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    caches = {
        f"ZIG_{kind}_CACHE_DIR": str(folder / "zig") for kind in ("LOCAL", "GLOBAL")
    }  # else one build would use the other's
    command = [sys.executable, "-m", "wheels.build", *targets, "--out", str(out), "--cache", str(ROOT / "build/headers")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=clone, check=True, env=environment | caches)
    return out


if __name__ == "__main__":
    sys.exit(main())
