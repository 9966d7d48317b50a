"""The room that a whole run of the tests needs."""

import os
from pathlib import Path

import pytest

from harness import room


def test_small_folder_is_named_with_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 3 * 2**30 // 4096
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 2**40, 2**39, blocks, 0, 0, 0, 0, 255)))
    assert f"{tmp_path} has 3.0 GiB" in room.why_too_small(tmp_path)


def test_folder_with_room_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = room.NEEDED_GIB * 2**30 // 4096
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 2**40, 0, blocks, 0, 0, 0, 0, 255)))
    assert room.why_too_small(tmp_path) == ""
