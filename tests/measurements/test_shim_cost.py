"""The native executable is measured as it is built."""

from pathlib import Path
from typing import Any


def test_executable_is_built_by_the_command_line_of_the_build(bench: Any, tmp_path: Path) -> None:
    module = bench("shim_cost")
    assert not [word for word in module.compiler_and_flags() if "${" in word]
    null, installed = module.build(tmp_path, None)
    assert null.stat().st_size < installed.stat().st_size
