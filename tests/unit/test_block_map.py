"""The map of a pool: cells, rows, and the picture."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.ipam import put_pool, put_reservation, put_settings
from svc._core.cidr import Address, Cidr
from svc.admin.block_map import Cell, read_map, svg, text_lines
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.errors import CallerError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        put_pool(store, "p", "10.65.0.0/24")
        yield store


def fill(store: EmbeddedStore, node: str, count: int) -> list[str]:
    service = IpamService(store, node)
    return [str(service.assign(Assign(f"{node}-{number}", {"node": node})).addresses[0]) for number in range(count)]


def cells(store: EmbeddedStore, node: str = "") -> list[str]:
    found = read_map(store, "p", node)
    return [found.cell(number).text for number in range(found.count)]


def test_empty_pool_has_no_blocks(store: EmbeddedStore) -> None:
    assert cells(store) == ["..."] * 4


def test_own_and_foreign_blocks_differ(store: EmbeddedStore) -> None:
    fill(store, "n1", 1)
    fill(store, "n2", 64)
    assert sorted(cells(store, "n1")) == ["...", "...", "f8-", "o1-"]
    assert sorted(cells(store)) == ["...", "...", "f1-", "f8-"]


@pytest.mark.parametrize(("used", "eighths"), [(0, 0), (1, 1), (8, 1), (9, 2), (56, 7), (57, 7), (63, 7), (64, 8)])
def test_only_an_unused_block_is_0_and_only_a_full_one_is_8(used: int, eighths: int) -> None:
    assert Cell(Cidr("10.65.0.0/26"), "o", used=used).eighths == eighths


def test_borrowed_addresses_make_a_capital(store: EmbeddedStore) -> None:
    """The fifth node finds no free block, and borrows."""
    for node in ("n1", "n2", "n3", "n4", "n5"):
        fill(store, node, 1)
    assert sorted(cells(store)) == ["F1-", "f1-", "f1-", "f1-"]


def test_block_without_affinity_is_marked(store: EmbeddedStore) -> None:
    from svc.admin.block_release import release_host

    fill(store, "n1", 3)
    release_host(store, "n1")
    assert sorted(cells(store, "n1")) == ["...", "...", "...", "u1-"]


def test_cooldown_and_reservations_are_marked(store: EmbeddedStore) -> None:
    put_settings(store, cooldown_seconds=600)
    service = IpamService(store, "n1")
    (address,) = service.assign(Assign("h", {"node": "n1"})).addresses
    service.release(Release("h"))
    assert sorted(cells(store, "n1")) == ["...", "...", "...", "o1c"]
    put_reservation(store, "r", f"{address}/32")
    assert sorted(cells(store, "n1")) == ["...", "...", "...", "o1*"]


def test_reserved_ranges_without_a_block_are_shown(store: EmbeddedStore) -> None:
    put_reservation(store, "r", "10.65.0.128/25", "10.65.0.4/30")
    assert cells(store) == ["..r", "...", "..r", "..r"]


def test_empty_rows_are_one_line(store: EmbeddedStore) -> None:
    put_pool(store, "wide", "10.66.0.0/16")
    store_service = IpamService(store, "n1")
    store_service.assign(Assign("h", {"node": "n1"}, addresses=(Address("10.66.128.1"),)))
    lines = list(text_lines(read_map(store, "wide", "n1"), 80))
    assert lines[0] == "IP pool wide 10.66.0.0/16: 1024 blocks of /26"
    assert [line.split() for line in lines[1:4]] == [
        ["10.66.0.0/26", "...", "no", "blocks"],
        ["10.66.128.0/26", "o1-", *["..."] * 7],
        ["10.66.130.0/26", "...", "no", "blocks"],
    ]


@pytest.mark.parametrize("columns", [1, 20, 40, 80, 200])
def test_lines_fit_into_the_terminal(store: EmbeddedStore, columns: int) -> None:
    """A row has one cell at least."""
    fill(store, "n1", 70)
    lines = list(text_lines(read_map(store, "p", "n1"), columns))
    assert max(map(len, lines)) <= max(columns, len("10.65.0.128/26 ... no blocks"))


def test_blocks_of_another_size_are_shown(store: EmbeddedStore) -> None:
    """A small block is a part of its cell, a large one has several cells."""
    put_pool(store, "p", "10.65.0.0/24", blockSize=28)
    fill(store, "n1", 3)
    put_pool(store, "p", "10.65.0.0/24", blockSize=26)
    assert sorted(cells(store, "n1")) == ["...", "...", "...", "x1-"]
    put_pool(store, "p", "10.65.0.0/24", blockSize=30)
    assert sorted(cells(store, "n1")) == ["..."] * 60 + ["x0-"] * 3 + ["x6-"]
    lines = "\n".join(text_lines(read_map(store, "p"), 200))
    assert "x blocks of another size than the pool's, ? a block that cannot be read" in lines
    put_pool(store, "other", "10.66.0.0/24")
    assert "blocks of another size" not in "\n".join(text_lines(read_map(store, "other"), 200))
    assert "block of another size: 10.65.0." in svg(read_map(store, "p"))


def test_reservations_that_have_too_many_blocks_are_named(store: EmbeddedStore) -> None:
    put_pool(store, "six", "fd00::/48", blockSize=122)
    put_reservation(store, "r", "fd00:0:0:1::/64", "fd00::/122")
    found = read_map(store, "six")
    assert found.cell(0).text == "..r"
    note = "not shown, but reserved: all of fd00:0:0:1::/64"
    assert note in list(text_lines(found, 80))
    assert note in svg(found)


def test_huge_pools_are_read_in_time(store: EmbeddedStore) -> None:
    """An IPv6 pool has more blocks than any list could hold."""
    put_pool(store, "six", "fd65::/32")
    put_reservation(store, "r", "fd65:0:1::/48")
    found = read_map(store, "six")
    assert found.count == 1 << 90
    assert list(text_lines(found, 80))[1].startswith("fd65::/122")


def test_picture_has_a_group_with_a_title_for_each_cell(store: EmbeddedStore) -> None:
    fill(store, "n1", 33)
    picture = ElementTree.fromstring(svg(read_map(store, "p", "n1")))
    titles = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4
    assert any("(host:n1): 33 of 64 in use" in title for title in titles)


def test_unknown_pool_is_an_error(store: EmbeddedStore) -> None:
    with pytest.raises(CallerError, match="IP pool 'q' does not exist"):
        read_map(store, "q")
