"""Compile the extensions and the executable of a wheel with zig, as CMakeLists.txt says."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from wheels.headers import Unavailable
from wheels.targets import GLIBC, Target

ROOT: Final = Path(__file__).parent.parent
_OF_COMPILERS: Final = {"CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"}
EXTENSIONS, SCRIPTS, METADATA = "svc/_core", "scripts", "metadata"


def environment() -> dict[str, str]:
    """Return the environment of builds: what a shell says to compilers and CMake would change the bytes of wheels."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_COMPILERS and not name.startswith(("CMAKE_", "SKBUILD_"))
    }
    return found | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def zig_folder() -> Path:
    """Return the folder of the ziglang wheel. Raise Unavailable."""
    try:
        import ziglang
    except ImportError:
        raise Unavailable("the package ziglang is missing: install the group `wheels`") from None
    return Path(str(ziglang.__file__)).parent


def compile_target(target: Target, include: Path, generated: Path, version: str, folder: Path) -> Path:
    """Return the folder with extensions, scripts and metadata of a wheel. Raise CalledProcessError.

    `include` has Python.h, `generated` the C code of the extensions."""
    build, stage = folder / "build", folder / "stage"
    build.mkdir(parents=True)
    zig = zig_folder() / "zig"
    compiler = build / "zig-cc"
    compiler.write_text(f'#!/bin/sh\nexec "{zig}" cc "$@"\n')
    compiler.chmod(0o755)
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_C_COMPILER": str(compiler),
        "CMAKE_C_COMPILER_TARGET": target.zig,
        # CMake's own checks link nothing: for the first one zig would compile all of musl, for a minute.
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "HAS_NOSEPARATE_CODE": "OFF",
        "CMAKE_MODULE_LINKER_FLAGS": "-s" if target.library == GLIBC else "-s -nostdlib",  # musl: the interpreter has it loaded
        "CMAKE_INSTALL_PREFIX": str(stage),
        "Python_EXECUTABLE": sys.executable,
        "SKBUILD_PROJECT_VERSION": version,
        "SKBUILD_SCRIPTS_DIR": SCRIPTS,
        "SKBUILD_METADATA_DIR": METADATA,
        "SVC_GENERATED": str(generated),
        "SVC_PYTHON_INCLUDE": str(include),
        "SVC_SUFFIX": target.suffix,
        "SVC_SHIM_CC": f"{zig};cc;-target;{target.zig_static}",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), *options]
    for command in (configure, ["cmake", "--build", str(build)], ["cmake", "--install", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return stage
