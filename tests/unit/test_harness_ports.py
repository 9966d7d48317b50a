"""Ranges of ports, of which each process of tests and of the benchmark has one."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from harness import etcd


def test_range_of_another_user_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a run as root, whose file another user may neither write nor, in /tmp, open to create it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = os.open

    def refused(path: Any, *arguments: Any) -> int:
        if str(path).endswith("-7"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refused)
    assert not etcd._lock(7)
