"""Installations of the native executable."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.shim import (
    FakeAgent,
    Shim,
    answering,
    compile_shim,
    install,
    write_one_shot,
)


@pytest.fixture(scope="session")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SVC_SHIM names one that is built already."""
    built = os.environ.get("SVC_SHIM")
    return Path(built) if built else compile_shim(tmp_path_factory.mktemp("shim") / "svc")


@pytest.fixture(scope="session")
def hasty_executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program with seconds of 20 ms."""
    return compile_shim(tmp_path_factory.mktemp("hasty") / "svc", "-DSECOND_MS=20")


@pytest.fixture
def shim(executable: Path, tmp_path: Path) -> Shim:
    return install(executable, tmp_path)


@pytest.fixture
def hasty_shim(hasty_executable: Path, tmp_path: Path) -> Shim:
    return install(hasty_executable, tmp_path)


@pytest.fixture
def agent(shim: Shim) -> Iterator[FakeAgent]:
    with FakeAgent(shim.socket, answering(0, b'{"cniVersion":"1.0.0"}\n')) as running:
        yield running


@pytest.fixture
def lonely_shim(shim: Shim, tmp_path: Path) -> Shim:
    """No agent, and a `python` that tells what it was given."""
    shim.record(f"socket={shim.socket}\npython={write_one_shot(tmp_path / 'python')}\n")
    return shim
