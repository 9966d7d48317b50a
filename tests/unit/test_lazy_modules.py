"""Modules that are imported when something of them is used."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from svc.lazy_modules import postpone

NAME = "imported_late"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a module that can be imported and was not."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield NAME
    sys.modules.pop(NAME, None)


def test_module_is_imported_at_its_first_use(module: str) -> None:
    postpone(module)
    stand_in = importlib.import_module(module)
    assert sys.modules[module] is stand_in
    assert stand_in.value == 1
    assert sys.modules[module] is not stand_in
    assert sys.modules[module].value == stand_in.value
    with pytest.raises(AttributeError, match="nothing"):
        _ = stand_in.nothing


def test_module_that_is_imported_already_stays(module: str) -> None:
    imported = importlib.import_module(module)
    postpone(module)
    assert sys.modules[module] is imported


def test_module_that_does_not_exist_is_missed_at_its_first_use() -> None:
    postpone("svc.no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = sys.modules["svc.no_such_module"].value


def test_threads_use_a_module_for_the_first_time(module: str) -> None:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(100):
                sys.modules.pop(module, None)
                postpone(module)
                stand_in = sys.modules[module]
                assert list(threads.map(lambda _, used=stand_in: used.value, range(4))) == [1] * 4
    finally:
        sys.setswitchinterval(before)


def test_grpc_and_log_records_do_not_import_asyncio() -> None:
    """Log records do from Python 3.12 on, if something seems to have imported it."""
    statements = (
        "import logging, sys",
        "from svc.datastore.etcd.sync_grpc import grpc",
        "logging.warning('a record')",
        "assert grpc.insecure_channel",
        "print('asyncio.events' in sys.modules)",
    )
    done = subprocess.run([sys.executable, "-c", "; ".join(statements)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0)
