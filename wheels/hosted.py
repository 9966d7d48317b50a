"""Check what hosted CI has built, and write the bill of materials: python -m wheels.hosted FOLDER.

Exit status: 0 the folder has the wheels of all targets and the sdist, and the document is valid, 1 not.
"""

import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from wheels.sbom import add_sbom
from wheels.targets import ALL, Target

_LICENSE = "COPYRIGHT.musl"
IDENTIFIERS = {f"{each.tag}-{each.library}_{each.machine}": each for each in ALL}
"""The targets by the names that cibuildwheel has for them."""


def main() -> int:
    """Check the folder that the command line names. Return the exit status."""
    folder = Path(sys.argv[1])
    found = [*problems(folder), *missing_licenses(folder)]
    print("\n".join(found or [f"{folder} has the wheels of {len(ALL)} targets"]))
    (sdist,) = folder.glob("*.tar.gz")
    information = f"{sdist.name.removesuffix('.tar.gz')}.dist-info"
    is_listed = add_sbom(information, folder, int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))
    return 0 if is_listed and not found else 1


def problems(folder: Path) -> Iterator[str]:
    """Yield each target without exactly one wheel, and each wheel of no target."""
    names = {path.name for path in folder.glob("*.whl")}
    for target in ALL:
        own = {name for name in names if re.search(_pattern(target), name)}
        names -= own
        if len(own) != 1:
            yield f"{target}: {', '.join(sorted(own)) or 'no wheel'}"
    yield from (f"{name} is for no target" for name in sorted(names))


def missing_licenses(folder: Path) -> Iterator[str]:
    """Yield each wheel without the licence of the C library in its executable."""
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            if not any(name.endswith(f"/licenses/{_LICENSE}") for name in archive.namelist()):
                yield f"{path.name}: the licence {_LICENSE} is missing"


def _pattern(target: Target) -> str:
    """Return the end of the name of a wheel; auditwheel adds older names of a platform."""
    return rf"-{target.tag}-{target.tag}-([\w.]+\.)?{target.platform}(\.[\w.]+)?\.whl$"


if __name__ == "__main__":
    sys.exit(main())
