"""Build another commit beside this checkout, in an environment of its own that shares the packages of this one."""

import io
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

from bench import ROOT
from bench.environment import commit

FOLDER = ROOT / "build" / "against"


def built(revision: str) -> Path:
    """Return the directory of the programs of a commit. Build them once. Raise SystemExit for an unknown commit."""
    git = ("git", "-C", str(ROOT), "-c", "safe.directory=*")
    named = subprocess.run(
        [*git, "rev-parse", "--verify", f"{revision}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if named.returncode:
        raise SystemExit(f"{revision} is not a commit of this repository: {named.stderr.strip()}")
    folder = FOLDER / named.stdout.strip()
    programs = folder / "venv" / "bin"
    if not (folder / "complete").exists():
        print(f"building {named.stdout.strip()[:12]} in {folder}, to compare it with {commit()}", flush=True)
        archive = subprocess.run([*git, "archive", named.stdout.strip()], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder / "source", filter="data")
        _build(folder)
        (folder / "complete").touch()
    return programs


def _build(folder: Path) -> None:
    """Build a wheel with the packages of this environment, and install it alone. Its dependencies are those of here."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source, wheels = str(folder / "source"), folder / "wheels"
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), source], check=True)
    venv.create(folder / "venv", clear=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    shared = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")})) / "shared.pth"
    shared.write_text(f"{sysconfig.get_path('purelib')}\n")  # after its own packages, and without the .pth files there
