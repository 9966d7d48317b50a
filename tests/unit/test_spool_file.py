"""Files of the spool: what is packed is read, and no other content is taken for a DEL."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.cni.call_io import CallInput
from svc.cni.frame import FrameError, OtherVersion, pack_request
from svc.cni.spool_file import DIRECTORY, MAX_BYTES, MAX_FILES, Spooled, pack, read, waiting

BOOT = "01234567-89ab-cdef-0123-456789abcdef"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
TIMES = st.integers(0, (1 << 64) - 1)
DEL = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}


def data_of(environment: dict[str, str] = DEL, boot: str = BOOT) -> bytes:
    return pack(pack_request(CallInput("svc", environment, b"{}")), boot, 7)


@given(name=TEXTS, container=TEXTS, profile=st.just("") | TEXTS, stdin=st.binary(max_size=300), nanoseconds=TIMES)
def test_what_is_packed_is_read(name: str, container: str, profile: str, stdin: bytes, nanoseconds: int) -> None:
    call = CallInput(name, {**DEL, "CNI_CONTAINERID": container}, stdin, has_descriptor=True, profile=profile)
    assert read(pack(pack_request(call), BOOT, nanoseconds)) == Spooled(BOOT, nanoseconds, call)


@given(st.integers(0, len(data_of()) - 1), st.integers(1, 255))
def test_every_changed_byte_is_found(place: int, change: int) -> None:
    data = bytearray(data_of())
    data[place] ^= change
    with pytest.raises(FrameError):
        read(bytes(data))


@given(st.integers(0, len(data_of()) - 1))
def test_every_cut_is_found(size: int) -> None:
    with pytest.raises(FrameError):
        read(data_of()[:size])
    with pytest.raises(FrameError):
        read(data_of() + b"x" * (size + 1))


@given(st.binary(max_size=200))
def test_other_content_is_refused(data: bytes) -> None:
    for each in (data, b"SVCS" + data, b"SVCS\x01\0\0\0" + data):
        with pytest.raises(FrameError):
            read(each)


def test_later_release_is_told_from_damage() -> None:
    data = data_of()
    with pytest.raises(OtherVersion, match="layout 2"):
        read(data[:4] + b"\x02" + data[5:])


@pytest.mark.parametrize("environment", [{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c"}, {"CNI_COMMAND": "DEL"}, {}])
def test_only_a_del_of_a_container_is_accepted(environment: dict[str, str]) -> None:
    with pytest.raises(FrameError, match="is not the DEL of a container"):
        read(data_of(environment))


def test_boot_id_is_required() -> None:
    with pytest.raises(FrameError, match="boot ID"):
        read(data_of(boot="x" * 36))


def test_waiting_counts_names_alone(tmp_path: Path) -> None:
    assert waiting(tmp_path).number == 0
    folder = tmp_path / DIRECTORY
    folder.mkdir()
    for name in ("0" * 16, "f" * 16, "." + "0" * 16, "f" * 17, "F" * 16, "a" * 16 + ".refused", "notes"):
        (folder / name).touch()
        os.utime(folder / name, (5.0, 5.0))
    os.utime(folder / ("f" * 16), (3.0, 3.0))
    found = waiting(tmp_path)
    assert (found.number, found.since, found.refused) == (2, 3.0, 1)
    assert (found.refused_files, found.is_full) == ((str(folder / ("a" * 16 + ".refused")),), False)


@pytest.mark.parametrize("by", ["number", "size"])
def test_full_spool_is_told(tmp_path: Path, by: str) -> None:
    """As the executable counts, files that are set aside do not fill it."""
    folder = tmp_path / DIRECTORY
    folder.mkdir()
    os.close(os.open(folder / ("0" * 16 + ".refused"), os.O_CREAT))
    os.truncate(folder / ("0" * 16 + ".refused"), MAX_BYTES)
    for number in range(MAX_FILES - 1 if by == "number" else 1):
        (folder / f"{number:016x}").touch()
    assert not waiting(tmp_path).is_full
    (folder / ("." + "f" * 16)).touch()
    if by == "size":
        os.truncate(folder / ("." + "f" * 16), MAX_BYTES)
    assert waiting(tmp_path).is_full
