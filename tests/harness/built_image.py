"""The image of svc, built once and kept outside the checkout under the hash of everything that it is built from.

`make image` does the same for users. A test that needs the image begins with `require()`.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.shim import ROOT
from svc import __version__

Json = dict[str, Any]

CACHE = Path(os.environ.get("SVC_TESTCACHE", "/var/cache/svc-tests")) / "image" / "built"
NAME = f"docker.io/library/svc:{__version__}"
"""The name by which a runtime finds what the manifests call `svc:VERSION`."""

_INPUTS = (
    "deploy/Containerfile", "tools/image.sh", "tools/trim-base.sh", "CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md",
)  # fmt: skip
_TREES = ("_core", "svc", "requirements")
_COMPILED = (".so", ".pyc")
_TIME = "1700000000"  # of all files: the same in all commits
_KEPT = 2  # of the newest images: each takes 200 MB
_CANNOT = 2


class BuiltImage:
    """An image in two forms: an OCI layout, and an archive that containerd imports."""

    def __init__(self, folder: Path) -> None:
        self.layout = folder / "oci"
        self.archive = folder / f"svc-{__version__}.tar"

    def blob(self, digest: str) -> Path:
        """Return the file with this digest."""
        return self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    @property
    def digest(self) -> str:
        """The digest of the manifest."""
        (entry,) = json.loads((self.layout / "index.json").read_text())["manifests"]
        return str(entry["digest"])

    @property
    def manifest(self) -> Json:
        """The manifest, with annotations and layers."""
        found: Json = json.loads(self.blob(self.digest).read_text())
        return found

    @property
    def settings(self) -> Json:
        """The configuration: variables, command, labels."""
        found: Json = json.loads(self.blob(self.manifest["config"]["digest"]).read_text())["config"]
        return found

    def unpack(self, folder: Path) -> None:
        """Write the file system of the image into a directory. Later layers replace files of earlier ones."""
        folder.mkdir()
        for layer in self.manifest["layers"]:
            subprocess.run(["tar", "-xzf", self.blob(layer["digest"]), "-C", folder], check=True)


def require() -> BuiltImage:
    """Return the image; build it unless it exists for these inputs. Skip the test if this machine cannot build it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / ".lock"):
        folder = CACHE / _key()
        if not folder.exists():
            _build(folder)
        os.utime(folder)
        for old in sorted(CACHE.glob("[0-9a-f]*"), key=lambda each: -each.stat().st_mtime)[_KEPT:]:
            shutil.rmtree(old)
    return BuiltImage(folder)


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build into a folder, as `make image` does."""
    variables = {"PYTHON": sys.executable, "IMAGE_CACHE": str(CACHE.parents[1]), "SOURCE_DATE_EPOCH": _TIME, **environment}
    command = ["sh", str(ROOT / "tools" / "image.sh"), str(folder)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def _build(folder: Path) -> None:
    draft = folder.with_name(f"draft-{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    done = build(draft)
    if done.returncode == _CANNOT:
        pytest.skip(f"no image: {done.stdout.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    draft.rename(folder)


def _key() -> str:
    """Return the hash of the files from which the image is built, with their names, and of the Python that builds it."""
    found = hashlib.sha256(sys.version.encode())
    for path in sorted(_inputs()):
        found.update(f"{path.relative_to(ROOT)}\0{path.stat().st_mode & 0o111:o}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _inputs() -> Iterator[Path]:
    yield from (ROOT / name for name in _INPUTS)
    for tree in _TREES:
        yield from (path for path in (ROOT / tree).rglob("*") if path.is_file() and path.suffix not in _COMPILED)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. Workers that need the image at the same time wait for the one that builds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
