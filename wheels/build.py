"""Build the wheels and the sdist: python -m wheels.build [TARGET ...] [--out FOLDER].

A TARGET is a part of a wheel's name, such as cp312, musllinux or cp311-manylinux-aarch64; without one, all wheels and the
sdist are built. Exit status: 0 all that was asked for is there, 1 a wheel failed or, if its name was given, cannot be built on
this machine, or nothing was built, 2 wrong use.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Final

from scikit_build_core.build import build_sdist
from zopfli.zlib import compress

from wheels.assembly import Member, compiled_part, information_folder, python_part, version_in, wheel_name, write_wheel
from wheels.checks import problems, sdist_problems
from wheels.compiling import ROOT, compile_target, environment, zig_folder
from wheels.dates import epoch as epoch_of
from wheels.deflation import Kept
from wheels.folders import alone_in, of_other_commits, publish
from wheels.headers import Unavailable, headers_of
from wheels.sbom import add_sbom
from wheels.targets import Target, add_targets, targets_of

_ITERATIONS: Final = 5


def main() -> int:
    """Build what the command line asks for. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wheels.build", description=__doc__)
    add_targets(parser)
    parser.add_argument("--out", type=Path, default=ROOT / "wheelhouse", help="folder of the wheels [wheelhouse]")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/headers", help="folder of fetched headers [build/headers]")
    given = parser.parse_args()
    try:
        epoch = epoch_of(ROOT)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that temporary files are removed
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        given.out, given.cache = given.out.resolve(), given.cache.resolve()
        with alone_in(ROOT / "build"):
            return _build_wanted(given, epoch)
    except KeyboardInterrupt:
        print(f"interrupted: only whole wheels are in {given.out}", file=sys.stderr)
        return 130
    except OSError as error:
        folders = f"{given.out}, {ROOT / 'build'} and {os.environ.get('TMPDIR', '/tmp')}"
        print(f"{error}: a build needs room and the right to write in {folders}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"{error}: its reason is above", file=sys.stderr)
    return 1


def _build_wanted(given: argparse.Namespace, epoch: int) -> int:
    """Build what was asked for. Return the exit status. Raise OSError, CalledProcessError."""
    given.generated = ROOT / "build/wheels"  # the same in each build: the cache of zig knows the files by their paths
    given.deflate = Kept(ROOT / f"build/deflated/zopfli-{version('zopfli')}-{_ITERATIONS}", _deflate)
    wrong_sdist = [] if given.targets else _sdist(given.out)
    shutil.rmtree(given.generated, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        base = python_part(_base_wheel(Path(name), given.generated))
        results = _build_all(targets_of(given.targets), base, given, Path(name), epoch)
    missing = [text for text in results if text]
    print(f"{len(results) - len(missing)} of {len(results)} wheels are in {given.out}")
    built = [wheel_name(information_folder(base), target) for target in targets_of(given.targets)]
    print("".join(f"{line}\n" for line in of_other_commits(given.out, built)), end="", flush=True)
    is_listed = add_sbom(information_folder(base), given.out, epoch)
    is_failed = bool(wrong_sdist) or not is_listed or any("cannot be built here" not in text for text in missing)
    return 1 if is_failed or (missing and given.targets) or len(missing) == len(results) else 0


def _sdist(folder: Path) -> list[str]:
    """Build the source distribution. Return what is wrong with it."""
    os.chdir(ROOT)
    sdist = folder / build_sdist(str(folder))
    found = list(sdist_problems(sdist))
    _tell("\n".join([f"{sdist.name}: {sdist.stat().st_size} bytes", *found]))
    return found


def _build_all(wanted: list[Target], base: dict[str, Member], given: argparse.Namespace, folder: Path, epoch: int) -> list[str]:
    """Build wheels, as many at a time as there are processors. Return for each what `_build` returns.

    Most steps of CMake, the compression and the checks use one processor each."""
    given.deflate.prepare({each.data for each in base.values()})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda each: _build(each, base, given, folder / str(each), epoch), wanted))


def _build(target: Target, base: dict[str, Member], given: argparse.Namespace, folder: Path, epoch: int) -> str:
    """Build a wheel and check it. Return why that failed; empty if it did not."""
    information = information_folder(base)
    final = given.out / wheel_name(information, target)
    final.unlink(missing_ok=True)  # an earlier one must not pass for what this build made
    try:
        include = headers_of(target.python, given.cache)
        stage = compile_target(target, include, given.generated, version_in(information), folder)
    except Unavailable as error:
        return _tell(f"{target}: cannot be built here: {error}")
    except subprocess.CalledProcessError as error:
        return _tell(f"{target}: {error}\n{error.stdout}{error.stderr}")
    members = base | dict(compiled_part(stage, information)) | dict(_licenses(information))
    wheel = write_wheel(members, target, folder, epoch, given.deflate)
    if found := list(problems(wheel, target)):
        return _tell("\n".join([f"{target}: the wheel is wrong:", *found]))
    publish(wheel, final)
    shutil.rmtree(folder)
    _tell(f"{final.name}: {final.stat().st_size} bytes")
    return ""


def _licenses(information: str) -> Iterator[tuple[str, Member]]:
    """Yield the licence of the C library that the executable has."""
    yield f"{information}/licenses/COPYRIGHT.musl", Member((zig_folder() / "lib/libc/musl/COPYRIGHT").read_bytes())


def _deflate(data: bytes) -> bytes:
    """Compress, 3 % smaller than zlib and independent of the zlib of this machine."""
    whole: bytes = compress(data, numiterations=_ITERATIONS)
    return whole[2:-4]  # without the header and the checksum of zlib's format


def _base_wheel(folder: Path, build: Path) -> Path:
    """Return a wheel without compiled files, made in `build`. All wheels share its Python part and the C code there."""
    settings = (f"build-dir={build}", "build.targets=core_code", "install.components=none")
    options = ["--quiet", "--no-deps", "--no-build-isolation", *(f"-C{each}" for each in settings), "-w", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(command, env=environment(), check=True)
    return next(folder.glob("*.whl"))


def _tell(text: str) -> str:
    print(f"{text}\n", end="", flush=True)  # in one piece: wheels are built at the same time
    return text


if __name__ == "__main__":
    sys.exit(main())
