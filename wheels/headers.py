"""The headers of the Pythons that wheels are built for: those of Debian's and Ubuntu's packages, by digest.

The headers of one machine serve both: the ABI depends on word size and byte order, which they share. Of the 1,700 lines of
`pyconfig.h`, three concern the processor, and none of them an extension module.
"""

import hashlib
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

_DEBIAN: Final = "http://deb.debian.org/debian/pool/main/p"
_UBUNTU: Final = "http://archive.ubuntu.com/ubuntu/pool/main/p"
_SECONDS: Final = 120
_MULTIARCH: Final = "x86_64-linux-gnu"
_FETCHING: Final = Lock()  # wheels of one Python are built at the same time
_FAILED: Final[dict[str, "Unavailable"]] = {}  # a host that does not answer is asked once for all wheels of a Python


class Unavailable(Exception):
    """What a wheel needs cannot be had on this machine."""


@dataclass(frozen=True)
class Package:
    """A file of an archive, and its digest."""

    url: str
    sha256: str


# The oldest release of each Python that a distribution keeps: extensions built with it run on all later ones.
_PACKAGES: Final = {
    "3.10": Package(
        f"{_UBUNTU}/python3.10/libpython3.10-dev_3.10.4-3_amd64.deb",
        "89246f12cdfb1fac7675bc94d5cc8b9c72320f152e855197668305c73c8588ec",
    ),
    "3.11": Package(
        f"{_DEBIAN}/python3.11/libpython3.11-dev_3.11.2-6+deb12u8_amd64.deb",
        "01a8eddeb8505bb6e2c01209cda66b41fb5ebeaa64e69d0e25f7131915f1cd32",
    ),
    "3.12": Package(
        f"{_UBUNTU}/python3.12/libpython3.12-dev_3.12.3-1_amd64.deb",
        "f5924a06298ae0689128498276d3a555e02615a4ecfa8f4417d679a097586f35",
    ),
    "3.13": Package(
        f"{_DEBIAN}/python3.13/libpython3.13-dev_3.13.5-2+deb13u5_amd64.deb",
        "4bd7b17ffbeb367ce1fef8b6ff02536a25f29fc07372d1bdd3ed1e1faa5b9409",
    ),
    "3.14": Package(
        f"{_UBUNTU}/python3.14/libpython3.14-dev_3.14.4-1_amd64.deb",
        "75bdc4cfef63482b1391503036c5b634ebb1ca0676ee7d3e5cc847c391c5647f",
    ),
}


def headers_of(python: str, cache: Path) -> Path:
    """Return the folder with Python.h of a Python, fetched once into the cache. Raise Unavailable."""
    package = _PACKAGES[python]
    folder = cache / f"python{python}-{package.sha256[:12]}"
    with _FETCHING:
        if not folder.exists():
            _unpack_once(python, package, folder)
    return folder / f"usr/include/python{python}"


def _unpack_once(python: str, package: Package, folder: Path) -> None:
    if python in _FAILED:
        raise _FAILED[python]
    try:
        _unpack(python, package, folder)
    except Unavailable as error:
        _FAILED[python] = error
        raise


def _unpack(python: str, package: Package, folder: Path) -> None:
    """Fetch a package, and unpack it into a folder. Raise Unavailable."""
    if shutil.which("dpkg-deb") is None:
        raise Unavailable("dpkg-deb is missing: install the package dpkg")
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    archive = draft / "package.deb"
    archive.write_bytes(fetch(package))
    subprocess.run(["dpkg-deb", "-x", archive, draft], check=True)
    archive.unlink()
    include = draft / "usr/include"
    # Debian's own pyconfig.h only chooses that of the machine.
    shutil.copy(include / _MULTIARCH / f"python{python}/pyconfig.h", include / f"python{python}/pyconfig.h")
    draft.rename(folder)


def fetch(package: Package) -> bytes:
    """Return the content of a package. Raise Unavailable."""
    try:
        with urllib.request.urlopen(package.url, timeout=_SECONDS) as reply:
            data: bytes = reply.read()
    except (urllib.error.URLError, OSError) as error:
        raise Unavailable(f"{package.url} cannot be fetched: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != package.sha256:
        raise Unavailable(f"{package.url} has the digest {found}, not {package.sha256}")
    return data
