"""Free disk space for a SQLite file."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from svc.datastore.api import NoSpace
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.sqlite import require_disk_space


def refuse(number: int) -> Any:
    def allocate(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return allocate


def test_space_is_freed_again(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    require_disk_space(tmp_path / "store.db")
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_refused_allocation_names_file_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A quota can refuse the allocation although the file system has free blocks."""
    monkeypatch.setattr(os, "posix_fallocate", refuse(number))
    with pytest.raises(NoSpace) as raised:
        require_disk_space(tmp_path / "store.db")
    assert str(tmp_path / "store.db") in raised.value.msg
    assert os.strerror(number) in raised.value.msg
    assert f"df {tmp_path}" in raised.value.details


def test_known_lack_of_space_allocates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EIO))
    with pytest.raises(NoSpace):
        require_disk_space(tmp_path / "store.db")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EIO])
def test_other_errors_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The write that follows reports them."""
    monkeypatch.setattr(os, "posix_fallocate", refuse(number))
    require_disk_space(tmp_path / "store.db")
    require_disk_space(tmp_path / "missing" / "store.db")


def test_writable_store_needs_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddedStore(tmp_path / "store.db")
    store.check_writable()
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(NoSpace):
        store.check_writable()
    store.close()
