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
    """Return the executable. SVC_SHIM names an existing one."""
    built = os.environ.get("SVC_SHIM")
    return Path(built) if built else compile_shim(tmp_path_factory.mktemp("shim") / "svc")


@pytest.fixture(scope="session")
def fast_executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the same program with seconds of 20 ms."""
    return compile_shim(tmp_path_factory.mktemp("hasty") / "svc", "-DSECOND_MS=20")


@pytest.fixture
def shim(executable: Path, tmp_path: Path) -> Shim:
    return install(executable, tmp_path)


@pytest.fixture
def fast_shim(fast_executable: Path, tmp_path: Path) -> Shim:
    return install(fast_executable, tmp_path)


@pytest.fixture
def agent(shim: Shim) -> Iterator[FakeAgent]:
    with FakeAgent(shim.socket, answering(0, b'{"cniVersion":"1.0.0"}\n')) as running:
        yield running


@pytest.fixture
def shim_without_agent(shim: Shim, tmp_path: Path) -> Shim:
    """Return an installation without an agent, whose `python` reports its input."""
    shim.record(f"socket={shim.socket}\npython={write_one_shot(tmp_path / 'python')}\n")
    return shim
