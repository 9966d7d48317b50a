"""The C programs that the benchmark builds, and the versions of the peers on this machine."""

import shutil
import subprocess
from pathlib import Path

from bench import ROOT
from bench.measurement import Missing
from svc import __version__

PEER_DIR = Path("/usr/lib/cni")  # the directory of Debian's containernetworking-plugins
PTP = PEER_DIR / "ptp"
NULL = "int main(void) { return 0; }\n"
HEADERS = (
    "-idirafter",
    "/usr/include",
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
)  # musl's headers do not contain the kernel's
STATIC = ("-static", "-Os", "-s", "-pthread")
WARNINGS = ("-Wall", "-Wextra")


def build_runtime(directory: Path) -> Path:
    """Build the program that executes the plugins and measures the times."""
    return _compile([_compiler("gcc"), "-O2", "-pthread", *WARNINGS], ROOT / "bench/runtime.c", directory / "runtime")


def build_floor(directory: Path) -> Path:
    return _compile([*_static_compiler(), *WARNINGS], ROOT / "bench/kernel_floor.c", directory / "kernel_floor")


def build_null(directory: Path) -> Path:
    """Build a static program that does nothing, which shows the cost of executing a program."""
    source = directory / "null.c"
    source.write_text(NULL)
    return _compile(_static_compiler(), source, directory / "null")


def versions() -> dict[str, str]:
    """Return the versions of the compared programs, by name."""
    return {"svc": __version__, "containernetworking-plugins": _debian_version("containernetworking-plugins")}


def require_ptp() -> str:
    """Return what is missing for the peer, or an empty text."""
    return "" if PTP.exists() else f"{PTP} is missing: apt-get install containernetworking-plugins"


def _static_compiler() -> list[str]:
    musl = shutil.which("musl-gcc")
    return [musl, *HEADERS, *STATIC] if musl else [_compiler("gcc"), *STATIC]


def _compiler(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise Missing(f"{name} is missing: apt-get install gcc libc6-dev")
    return found


def _compile(command: list[str], source: Path, target: Path) -> Path:
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    return target


def _debian_version(package: str) -> str:
    command = ["dpkg-query", "--show", "--showformat", "${Version}", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which(command[0]) else None
    return done.stdout if done and done.returncode == 0 else "unknown"
