"""Locks between processes: state, socket, locks of earlier builds, and messages of waiting processes."""

import fcntl
import os
import signal
import stat
from contextlib import closing
from pathlib import Path

import pytest

from harness.lock_holder import held_by, open_to_all
from harness.polling import wait_until
from svc.cni import locks
from svc.cni.locks import AGENT, DIRECTORY, EARLIER_CALLS, EARLIER_SOCKET, EARLIER_STATE, SocketLock, StateLock
from svc.model.errors import CallerError, Code, PeerError
from svc.private_directory import UnsafeDirectory


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def can_take(state_dir: Path, purpose: str = "ADD c1 eth0", seconds: float = 0) -> bool:
    """Return whether a one-shot gets the lock; it releases the lock again."""
    with closing(StateLock(state_dir, purpose)) as lock:
        try:
            return lock.take(seconds)
        except PeerError:
            return False


# the state


def test_lock_excludes_other_processes(state_dir: Path) -> None:
    with closing(StateLock(state_dir, "ADD c1 eth0")) as lock:
        assert lock.take(0)
        assert not can_take(state_dir)
        lock.free()
        assert can_take(state_dir)
    assert can_take(state_dir)


def test_timeout_names_the_holder(state_dir: Path) -> None:
    with closing(StateLock(state_dir, "ADD c1 eth0")) as first, closing(StateLock(state_dir, "DEL c1 eth0")) as second:
        first.take(0)
        with pytest.raises(PeerError) as raised:
            second.take(0.05)
    assert raised.value.code == Code.TRY_AGAIN
    assert f"held by process {os.getpid()} (ADD c1 eth0)" in raised.value.msg
    assert "timed out after 0.05 s" in raised.value.msg
    assert f"kill -KILL {os.getpid()}" in raised.value.details


def test_error_says_that_the_holder_is_stopped(state_dir: Path) -> None:
    can_take(state_dir)
    with held_by(state_dir / DIRECTORY / locks.STATE) as pid:
        os.kill(pid, signal.SIGSTOP)
        with closing(StateLock(state_dir, AGENT)) as lock:
            wait_until(lambda: "which is stopped" in str(lock._lock.holder()))
            with pytest.raises(PeerError, match=rf"process {pid} .*which is stopped") as raised:
                lock.take_as_agent(0.05)
    assert f"kill -CONT {pid}" in raised.value.details


def test_note_of_an_ended_process_is_ignored(state_dir: Path) -> None:
    with closing(StateLock(state_dir, "GC")) as lock:
        lock.take(0)
    with held_by(state_dir / DIRECTORY / locks.STATE) as pid, closing(StateLock(state_dir, "ADD")) as lock:
        with pytest.raises(PeerError, match=rf"process {pid} \(of another release\)"):
            lock.take(0)


def test_call_that_an_agent_serves_does_not_wait(state_dir: Path) -> None:
    with closing(StateLock(state_dir, AGENT)) as agent, closing(StateLock(state_dir, "ADD")) as call:
        agent.take_as_agent(0)
        assert not call.take(20, unless=lambda: True)


def test_new_call_lets_an_agent_start_first(state_dir: Path) -> None:
    can_take(state_dir)
    with held_by(state_dir / DIRECTORY / locks.START), closing(StateLock(state_dir, "ADD")) as lock:
        with pytest.raises(PeerError):
            lock.take(0, gives_way=True)
        assert lock.take(0), "a call that continues after a wait does not let the agent start first"


def test_second_agent_is_refused_at_once(state_dir: Path) -> None:
    with closing(StateLock(state_dir, AGENT)) as first, closing(StateLock(state_dir, AGENT)) as second:
        first.take_as_agent(0)
        with pytest.raises(CallerError, match=f"another agent runs on '{state_dir}'"):
            second.take_as_agent(20)


def test_agent_waits_for_a_draining_agent(state_dir: Path) -> None:
    with closing(StateLock(state_dir, AGENT)) as first, closing(StateLock(state_dir, AGENT)) as second:
        first.take_as_agent(0)
        first.drain(0)
        with pytest.raises(PeerError, match=r"agent that stops"):
            second.take_as_agent(0.05)
        first.free()
        second.take_as_agent(0)


def test_agent_logs_once_which_process_it_waits_for(
    state_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_REPORT_SECONDS", 0.01)
    with closing(StateLock(state_dir, "ADD c1 eth0")) as call, closing(StateLock(state_dir, AGENT)) as agent:
        call.take(0)
        with pytest.raises(PeerError):
            agent.take_as_agent(0.2)
    assert caplog.text.count(f"process {os.getpid()} (ADD c1 eth0): it still changes attachments") == 1


def test_replaced_directory_is_detected(state_dir: Path, tmp_path: Path) -> None:
    with closing(StateLock(state_dir, AGENT)) as lock:
        lock.take_as_agent(0)
        lock.require()
        state_dir.rename(tmp_path / "elsewhere")
        with pytest.raises(PeerError, match="removed or replaced"):
            lock.require()
        assert can_take(state_dir)
        with pytest.raises(PeerError, match="removed or replaced"):
            lock.require()


def test_removed_lock_file_is_created_again(state_dir: Path) -> None:
    with closing(StateLock(state_dir, "ADD")) as lock:
        (state_dir / DIRECTORY / locks.STATE).unlink()
        assert lock.take(0)
        lock.require()
        assert not can_take(state_dir)


# earlier builds


@pytest.mark.parametrize("name", [EARLIER_STATE, EARLIER_CALLS])
def test_lock_of_an_earlier_build_excludes_this_build(state_dir: Path, name: str) -> None:
    can_take(state_dir)
    with held_by(state_dir / name):
        assert not can_take(state_dir)
    assert can_take(state_dir)


@pytest.mark.parametrize("name", [EARLIER_STATE, EARLIER_CALLS])
def test_lock_of_this_build_excludes_an_earlier_build(state_dir: Path, name: str) -> None:
    with closing(StateLock(state_dir, "ADD")) as lock, closing(StateLock(state_dir, AGENT)) as agent:
        lock.take(0)
        assert not can_lock(state_dir / name)
        lock.free()
        assert can_lock(state_dir / name)
        agent.take_as_agent(0)
        assert not can_lock(state_dir / name)
        agent.admit_earlier_calls()
        assert can_lock(state_dir / name) == (name == EARLIER_CALLS)
        agent.drain(0)
        assert not can_lock(state_dir / name)


def can_lock(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# other users


@pytest.mark.root
@pytest.mark.parametrize("name", [EARLIER_STATE, EARLIER_CALLS])
def test_lock_of_another_user_does_not_count(state_dir: Path, name: str, tmp_path: Path) -> None:
    """The other user opened the file while all users had access to the directory."""
    open_to_all(tmp_path)
    state_dir.mkdir(mode=0o755)
    (state_dir / name).touch(mode=0o644)
    with held_by(state_dir / name, "user"):
        assert can_take(state_dir)
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((state_dir / name).stat().st_mode) == 0o600


@pytest.mark.root
def test_socket_lock_of_another_user_does_not_count(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o755)
    (run_dir / EARLIER_SOCKET).touch(mode=0o644)
    with held_by(run_dir / EARLIER_SOCKET, "user"), closing(SocketLock(run_dir)) as lock:
        lock.take()
        assert stat.S_IMODE((run_dir / DIRECTORY).stat().st_mode) == 0o700


@pytest.mark.root
def test_directory_of_another_user_is_refused(state_dir: Path) -> None:
    state_dir.mkdir()
    os.chown(state_dir, 65534, 65534)
    with pytest.raises(UnsafeDirectory, match=r"belongs to user 65534") as refused:
        StateLock(state_dir, "ADD")
    assert refused.value.fix == f"chown root {state_dir}"


def test_directory_that_other_users_may_rename_is_refused(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeDirectory, match=r"has mode 0777") as refused:
        StateLock(tmp_path / "open" / "state", "ADD")
    assert refused.value.fix == f"chmod go-w {tmp_path}/open"


@pytest.mark.parametrize("umask", [0, 0o777])
def test_modes_do_not_depend_on_the_umask(state_dir: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        state_dir.mkdir(mode=0o777)
        state_dir.chmod(0o777)
        StateLock(state_dir, "ADD").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((state_dir / DIRECTORY).stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((state_dir / DIRECTORY / locks.STATE).stat().st_mode) == 0o600


@pytest.mark.parametrize("umask", [0, 0o777])
def test_missing_parents_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    """The second lock would refuse a parent that other users may write."""
    state_dir = tmp_path / "a" / "b" / "state"
    before = os.umask(umask)
    try:
        for _ in range(2):
            StateLock(state_dir, "ADD").close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state_dir.parent.parent, state_dir.parent)] == [0o755, 0o755]


# the socket


def test_one_agent_in_a_run_directory(tmp_path: Path) -> None:
    with closing(SocketLock(tmp_path / "run")) as first, closing(SocketLock(tmp_path / "run")) as second:
        first.take()
        with pytest.raises(CallerError, match=rf"another agent runs on .*process {os.getpid()} \(agent\)"):
            second.take()


def test_recreated_run_directory_is_locked_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with closing(SocketLock(run_dir)) as lock:
        lock.take()
        run_dir.rename(tmp_path / "gone")
        assert not lock.stands()
        lock.take()
        assert lock.stands()
