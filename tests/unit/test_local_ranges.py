"""Detection of exhausted host-local ranges from the files of host-local."""

from pathlib import Path
from typing import Any

import pytest

from svc.attach.sources.local_ranges import exhausted


def full_range(folder: Path, *given: str, groups: Any = (), **ipam: Any) -> str:
    (folder / "net").mkdir(parents=True)
    for name in (*given, "lock", "last_reserved_ip.0"):
        (folder / "net" / name).touch()
    return exhausted({"name": "net", "ipam": {"type": "host-local", "dataDir": str(folder), "ranges": list(groups), **ipam}})


@pytest.mark.parametrize(
    ("item", "given", "is_full"),
    [
        ({"subnet": "10.1.0.0/29"}, ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"], False),
        ({"subnet": "10.1.0.0/29"}, ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6"], True),
        ({"subnet": "10.1.0.0/30", "gateway": "10.1.0.2"}, ["10.1.0.1"], True),
        ({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9"}, ["10.1.0.9"], True),
        ({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9"}, ["10.1.0.10"], False),
        ({"subnet": "fd00::/126"}, ["fd00::2"], False),
        ({"subnet": "fd00::/126"}, ["fd00::2", "fd00::3"], True),
        ({"subnet": "fd00::/64"}, ["fd00::2", "10.1.0.2"], False),
    ],
)
def test_range_without_a_free_address_is_full(tmp_path: Path, item: Any, given: list[str], is_full: bool) -> None:
    assert bool(full_range(tmp_path, *given, groups=[[item]])) == is_full


def test_each_group_needs_a_free_address_in_any_of_its_ranges(tmp_path: Path) -> None:
    first, second = {"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30"}
    assert full_range(tmp_path / "a", "10.1.0.2", groups=[[first, second]]) == ""
    assert full_range(tmp_path / "b", "10.1.0.2", groups=[[second], [first]]) == "10.1.0.0/30"
    assert full_range(tmp_path / "c", "10.1.0.2", **first) == "10.1.0.0/30"


def test_unreadable_ranges_do_not_count_as_full(tmp_path: Path) -> None:
    assert full_range(tmp_path, groups=[[{"subnet": "usePodCidr"}]]) == ""
