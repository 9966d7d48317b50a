"""Wait for policy set-up: names and content of status files, and one watch for all waits."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.polling import wait_until
from svc.waits import policy
from svc.waits.inotify import Inotify, WatchLost
from svc.waits.policy import EndpointStatusFiles, PolicyWait, file_name
from svc.waits.wait import WaitOutcome

TIMEOUT_SECONDS = 20.0
ADDRESSES = ["10.65.0.7", "fd65::7"]


@pytest.fixture
def files() -> Iterator[EndpointStatusFiles]:
    with closing(EndpointStatusFiles()) as files:
        yield files


def begin(files: EndpointStatusFiles, directory: Path, name: str) -> PolicyWait:
    return files.wait(str(directory), name, ADDRESSES, time.monotonic() + TIMEOUT_SECONDS)


def threads() -> int:
    return sum(thread.name == "endpoint-status" for thread in threading.enumerate())


def inotify_watches() -> int:
    count = 0
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            count += Path("/proc/self/fdinfo", name).read_text().count("inotify wd")
        except FileNotFoundError:
            continue
    return count


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (("k8s", "name-space", "web-0", "eth0"), "k8s name-space%2Fweb-0 eth0"),
        (("k8s", "a b", "c%2Fd", "e/f"), "k8s a%20b%2Fc%252Fd e%2Ff"),
        (("k8s", "n", "$&+=:@~-_.", "e"), "k8s n%2F$&+=:@~-_. e"),
        (("k8s", "n", ";,?!*'()#[]\"", "e"), "k8s n%2F%3B%2C%3F%21%2A%27%28%29%23%5B%5D%22 e"),
        (("k8s", "n", "é\n", "e"), "k8s n%2F%C3%A9%0A e"),
    ],
)
def test_file_name_is_escaped(fields: tuple[str, str, str, str], expected: str) -> None:
    """The name is escaped as by Go's url.PathEscape, which the policy agent uses."""
    assert file_name(*fields) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", True),
        ("{}", True),
        ('{"ipv4Nets": []}', True),
        ('{"ipv4Nets": ["10.65.0.7/32"]}', True),
        ('{"ipv4Nets": ["10.65.0.8/32"], "ipv6Nets": ["FD65:0::7/128"]}', True),
        ('{"ipv4Nets": ["10.65.0.8/32"]}', False),
        ('{"ipv4Nets": ["10.65.0.8"], "ipv6Nets": ["fd65::8"]}', False),
        ('{"ipv4Nets": ["10.65.0.8/32", "nonsense"]}', True),
        ('{"mac": "ee:ee:ee:ee:ee:ee"}', True),
    ],
)
def test_file_is_stale_only_if_it_lists_other_addresses(tmp_path: Path, content: str, expected: bool) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert PolicyWait(str(path), ADDRESSES, 0.0).is_ready() is expected


def test_broken_link_does_not_count_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("nowhere")
    assert not PolicyWait(str(tmp_path / "file"), ADDRESSES, 0.0).is_ready()


def test_existing_file_needs_no_thread(files: EndpointStatusFiles, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert begin(files, tmp_path, "file").outcome is WaitOutcome.READY
    assert threads() == 0


def test_thousands_of_waits_share_one_watch(files: EndpointStatusFiles, tmp_path: Path) -> None:
    waits = {f"k8s n%2Fp{n} eth0": begin(files, tmp_path, f"k8s n%2Fp{n} eth0") for n in range(2000)}
    wait_until(lambda: inotify_watches() == 1)
    assert threads() == 1
    for name in waits:
        (tmp_path / name).touch()
    for wait in waits.values():
        wait.join()
    assert {wait.outcome for wait in waits.values()} == {WaitOutcome.READY}
    wait_until(lambda: threads() == 0)
    assert inotify_watches() == 0


def test_two_calls_can_wait_for_one_file(files: EndpointStatusFiles, tmp_path: Path) -> None:
    one, other = begin(files, tmp_path, "file"), begin(files, tmp_path, "file")
    one.end(WaitOutcome.DISCONNECTED)
    (tmp_path / "file").touch()
    other.join()
    assert other.outcome is WaitOutcome.READY


def test_files_that_are_written_during_the_waits_are_found(files: EndpointStatusFiles, tmp_path: Path) -> None:
    """A file is found before, during and after the start of its wait."""
    names = [f"file-{n}" for n in range(500)]
    writer = threading.Thread(target=lambda: [(tmp_path / name).write_bytes(b"") for name in names])
    writer.start()
    waits = [begin(files, tmp_path, name) for name in names]
    for wait in waits:
        wait.join()
    writer.join()
    assert {wait.outcome for wait in waits} == {WaitOutcome.READY}


def test_file_that_is_written_just_before_the_watch_is_found(
    files: EndpointStatusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait has begun before, and no event reports the file."""
    original, later = Inotify.watch, list[PolicyWait]()

    def watch(self: Inotify, path: str) -> None:
        if not later:
            later.append(begin(files, tmp_path, "later"))
            (tmp_path / "later").touch()
        original(self, path)

    monkeypatch.setattr(Inotify, "watch", watch)
    first = begin(files, tmp_path, "first")
    wait_until(lambda: bool(later) and later[0].outcome is not None)
    assert later[0].outcome is WaitOutcome.READY
    first.end(WaitOutcome.DISCONNECTED)


def test_files_are_found_without_inotify(files: EndpointStatusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have run out of watches."""

    def refuse(_self: Inotify, _path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Inotify, "watch", refuse)
    wait = begin(files, tmp_path, "file")
    (tmp_path / "file").touch()
    wait.join()
    assert wait.outcome is WaitOutcome.READY


def test_files_of_dropped_events_are_found(files: EndpointStatusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports the loss, and svc checks all awaited files."""
    original, dropped = Inotify.changed, threading.Event()

    def drop(self: Inotify, seconds: float) -> set[str]:
        if names := original(self, seconds):
            dropped.set()
            raise WatchLost
        return names

    monkeypatch.setattr(Inotify, "changed", drop)
    wait = begin(files, tmp_path, "file")
    wait_until(lambda: inotify_watches() == 1)
    (tmp_path / "file").touch()
    wait.join()
    assert wait.outcome is WaitOutcome.READY
    assert dropped.is_set()


def test_close_ends_all_waits(tmp_path: Path) -> None:
    files = EndpointStatusFiles()
    waits = [begin(files, tmp_path / place, "file") for place in ("", "missing")]
    files.close()
    assert {wait.outcome for wait in waits} == {WaitOutcome.SHUTDOWN}
    assert threads() == 0


def test_later_wait_works_after_a_thread_could_not_be_started(
    files: EndpointStatusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            begin(files, tmp_path, "lost")
    wait = begin(files, tmp_path, "found")
    (tmp_path / "found").touch()
    wait.join()
    assert wait.outcome == WaitOutcome.READY
    wait_until(lambda: threads() == 0)


def test_files_are_polled_without_a_descriptor(
    files: EndpointStatusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later wait uses inotify again when descriptors are available."""

    def refuse() -> Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as refusing:
        refusing.setattr(policy, "Inotify", refuse)
        wait = begin(files, tmp_path, "a")
        assert threads() == 1
        (tmp_path / "a").touch()
        wait.join()
        wait_until(lambda: threads() == 0)
    assert wait.outcome is WaitOutcome.READY
    later = begin(files, tmp_path, "b")
    wait_until(lambda: inotify_watches() == 1)
    (tmp_path / "b").touch()
    later.join()
    assert later.outcome is WaitOutcome.READY


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
