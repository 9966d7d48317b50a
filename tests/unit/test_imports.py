"""An import that fails half-way does not break the next import."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.imports import whole_imports

PACKAGE = "svc_test_package"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a package that, like asyncio, uses its submodules by the names that their import binds."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("from .first import *\nfrom .second import *\nNAMES = first.NAMES + second.NAMES\n")
    (folder / "first.py").write_text("NAMES = ['first']\n")
    (folder / "second.py").write_text(f"raise OSError({errno.EMFILE}, 'too many')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


def names() -> list[str]:
    with whole_imports():
        module = __import__(PACKAGE)
    found: list[str] = module.NAMES
    return found


def test_package_is_complete_after_a_second_import(package: Path) -> None:
    with pytest.raises(OSError, match="too many"):
        names()
    (package / "second.py").write_text("NAMES = ['second']  # longer than before, so that its cache is not taken\n")
    assert names() == ["first", "second"]


def test_lack_of_descriptors_is_an_oserror(package: Path) -> None:
    """The loader reports it as an ImportError if it cannot open a shared object. A caller would report a missing extra."""
    (package / "second.py").write_text(f"raise ImportError('x.so: cannot open: {os.strerror(errno.EMFILE)}')\n")
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)) as raised:
        names()
    assert raised.value.errno == errno.EMFILE


def test_missing_package_stays_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError), whole_imports():
        __import__(f"{PACKAGE}_that_nobody_has")


def test_import_needs_free_descriptors(package: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 3, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)), whole_imports():
            pytest.fail("the block was entered")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PROGRAM = """
import errno, sys
import orjson  # an agent has imported it before, and its extension module cannot fail
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from svc.imports import whole_imports
left = int(sys.argv[1])
real = SourceFileLoader.get_code
def get_code(self, name):
    global left
    left -= 1
    if not left:
        raise OSError(errno.EMFILE, "too many")
    return real(self, name)
SourceFileLoader.get_code = get_code
for attempt in range(2):
    try:
        with whole_imports():
            import svc.datastore.etcd.store
    except OSError as failure:
        assert attempt == 0, failure
import grpc
try:
    grpc.insecure_channel("127.0.0.1:1").unary_unary("/x")(b"", timeout=1)
except grpc.RpcError as answer:
    assert answer.code() is grpc.StatusCode.UNAVAILABLE
"""


@pytest.mark.parametrize("number", [8, 16, 56, 100, 120])
def test_grpc_works_after_an_import_that_failed_at_any_file(number: int) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(number)], check=True, timeout=60)
