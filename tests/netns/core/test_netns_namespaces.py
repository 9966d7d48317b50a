"""Entering and leaving namespaces: identities, sysctls, and threads that always return."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core_netns import Side
from svc._core import netns, rtnl

pytestmark = pytest.mark.root

CORE = Path(netns.__file__).parents[2]  # the entry of sys.path with the core that is tested

VISITORS: list[Callable[[int], object]] = [
    lambda fd: netns.Socket(fd),
    lambda fd: netns.LinkMonitor(fd),
    lambda fd: netns.write_sysctls(fd, [("net/ipv4/ip_forward", "1")]),
    lambda fd: netns.read_sysctls(fd, ["net/ipv4/ip_forward"]),
]


def test_identity_is_that_of_stat(sandbox: Side) -> None:
    """It is device and inode, for the namespace of this process and for another one."""
    there, here = os.stat(sandbox.netns.path), os.stat("/proc/thread-self/ns/net")
    assert netns.netns_identity(sandbox.fd) == (there.st_dev, there.st_ino)
    assert netns.own_netns_identity() == (here.st_dev, here.st_ino)
    assert netns.netns_identity(sandbox.fd) != netns.own_netns_identity()


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/ns/uts", "/proc/self/cmdline"])
def test_other_descriptors_have_no_identity(path: str) -> None:
    """They are a device, a namespace of another kind and a file."""
    with open(path, "rb") as opened, pytest.raises(ValueError, match="is not a network namespace"):
        netns.netns_identity(opened.fileno())


def test_closed_descriptor_has_no_identity() -> None:
    """The caller gets the error of the kernel."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        netns.netns_identity(12345)


@pytest.mark.parametrize("visit", VISITORS)
def test_thread_returns_after_success(visit: Callable[[int], object], sandbox: Side) -> None:
    """This holds for every function that enters a namespace."""
    before = os.readlink("/proc/thread-self/ns/net")
    visit(sandbox.fd)
    assert os.readlink("/proc/thread-self/ns/net") == before


@pytest.mark.parametrize("visit", VISITORS)
@pytest.mark.parametrize(("path", "number"), [("/dev/null", errno.EINVAL), ("/proc/self/ns/uts", errno.EINVAL)])
def test_thread_stays_if_the_descriptor_is_not_a_network_namespace(
    visit: Callable[[int], object], path: str, number: int
) -> None:
    """The caller gets the error of setns."""
    before = os.readlink("/proc/thread-self/ns/net")
    with open(path, "rb") as opened, pytest.raises(OSError, match="Invalid argument") as refusal:
        visit(opened.fileno())
    assert refusal.value.errno == number
    assert os.readlink("/proc/thread-self/ns/net") == before


def test_no_descriptor_stays_open(sandbox: Side) -> None:
    """This holds after success, after failure, and for objects that are dropped without a close."""
    before = len(os.listdir("/proc/self/fd"))
    with open("/dev/null", "rb") as wrong:
        for fd, visit in [(fd, visit) for fd in (sandbox.fd, wrong.fileno(), 12345) for visit in VISITORS] * 20:
            try:
                visit(fd)
            except OSError:
                assert fd != sandbox.fd
    with pytest.raises(ValueError, match="timeout"):
        netns.Socket(sandbox.fd, timeout=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_sysctls_are_written_inside(sandbox: Side) -> None:
    """They are written in the given order, and in no other namespace."""
    path = "net/ipv4/conf/default/rp_filter"
    outside = netns.read_sysctls(-1, [path])
    netns.write_sysctls(sandbox.fd, [(path, "1"), (path, "2")])
    assert sandbox.netns.sysctl(path) == "2"
    assert netns.read_sysctls(sandbox.fd, [path, "net/ipv4/ip_forward"]) == ["2", sandbox.netns.sysctl("net/ipv4/ip_forward")]
    assert netns.read_sysctls(-1, [path]) == outside


@pytest.mark.parametrize("own", [False, True])
def test_socket_is_opened_after_the_sysctls(sandbox: Side, *, own: bool) -> None:
    """Both happen inside the namespace. If a sysctl cannot be written, the exception names it and no descriptor stays."""
    path, procfs, opened = "net/ipv4/conf/default/arp_ignore", netns.Procfs(), len(os.listdir("/proc/self/fd"))
    with netns.Socket(sandbox.fd, sysctls=[(path, "1")], procfs=procfs if own else None) as inside:
        request = rtnl.Batch()
        request.dump_links()
        assert [rtnl.unpack_link(link)["name"] for link in inside.query(request)] == ["lo"]
    assert sandbox.netns.sysctl(path) == "1"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError) as failure:
        netns.Socket(sandbox.fd, sysctls=[(path, "2"), ("net/ipv4/gone", "1")], procfs=procfs if own else None)
    assert failure.value.filename == "net/ipv4/gone"
    assert sandbox.netns.sysctl(path) == "2"
    with pytest.raises(OSError, match="Bad file descriptor") as refusal:
        netns.Socket(sandbox.fd + 900, sysctls=[(path, "3")], procfs=procfs if own else None)
    assert refusal.value.filename is None
    assert len(os.listdir("/proc/self/fd")) == before
    procfs.close()
    assert len(os.listdir("/proc/self/fd")) == opened


def test_own_procfs_is_replaced_after_many_uses(sandbox: Side) -> None:
    """It has the same files as /proc. Failures and repeated uses leave no descriptor but its own."""
    procfs, path = netns.Procfs(), "net/ipv4/conf/default/rp_filter"
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        netns.write_sysctls(sandbox.fd, [(path, str(number % 3))], procfs)
        assert sandbox.netns.sysctl(path) == netns.read_sysctls(sandbox.fd, [path], procfs)[0] == str(number % 3)
    with pytest.raises(FileNotFoundError):
        netns.write_sysctls(sandbox.fd, [("net/ipv4/gone", "1")], procfs)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    procfs.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert netns.read_sysctls(-1, ["net/ipv4/ip_forward"], procfs) == netns.read_sysctls(-1, ["net/ipv4/ip_forward"])
    procfs.close()


def test_missing_sysctl_reads_as_none(sandbox: Side) -> None:
    """The other sysctls are read."""
    paths = ["net/ipv4/conf/gone/forwarding", "net/ipv4/ip_forward"]
    assert netns.read_sysctls(sandbox.fd, paths) == [None, sandbox.netns.sysctl("net/ipv4/ip_forward")]
    assert netns.read_sysctls(sandbox.fd, []) == []


@pytest.mark.parametrize(
    ("item", "kind"),
    [(("net/ipv4/conf/gone/forwarding", "1"), FileNotFoundError), (("net/ipv4/conf/default/rp_filter", "x"), OSError)],
)
def test_writing_stops_at_the_first_failure(sandbox: Side, item: tuple[str, str], kind: type[OSError]) -> None:
    """The exception names the file. Earlier writes are kept."""
    path = "net/ipv4/conf/default/arp_ignore"
    with pytest.raises(kind) as failure:
        netns.write_sysctls(sandbox.fd, [(path, "1"), item, (path, "2")])
    assert failure.value.filename == item[0]
    assert sandbox.netns.sysctl(path) == "1"


@pytest.mark.parametrize("path", ["", "/proc/sys/net/ipv4/ip_forward", "net/../kernel/panic", "..", "net/ipv4/ip_forward\0x"])
def test_path_stays_below_proc_sys(path: str) -> None:
    """It is refused before any file is opened."""
    with pytest.raises(ValueError, match="no path below"):
        netns.write_sysctls(-1, [(path, "1")])
    with pytest.raises(ValueError, match="no path below"):
        netns.read_sysctls(-1, [path])


def test_value_longer_than_a_page_is_refused() -> None:
    """It is refused before any file is opened."""
    with pytest.raises(ValueError, match="5000 bytes"):
        netns.write_sysctls(-1, [("net/ipv4/ip_forward", "1" * 5000)])


def test_self_check_passes_for_root() -> None:
    """It does not change the namespace."""
    netns.self_check()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is missing")
def test_self_check_fails_without_the_capability() -> None:
    """Root without CAP_SYS_ADMIN cannot enter namespaces."""
    program = "from svc._core import netns; netns.self_check()"
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=CORE, capture_output=True, text=True, check=False)
    assert "PermissionError: [Errno 1]" in done.stderr


PRELOADED = """
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
/* The way in works, the way back does not. */
int setns(int fd, int kind)
{
    static int calls;
    if (calls++) { errno = EPERM; return -1; }
    return (int)syscall(SYS_setns, fd, kind);
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is missing")
def test_process_aborts_if_a_thread_cannot_return(sandbox: Side, tmp_path: Path) -> None:
    """It prints the reason. A thread must not continue in the namespace of a pod."""
    (tmp_path / "lost.c").write_text(PRELOADED)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "lost.so", tmp_path / "lost.c"], check=True)
    program = (
        f"import os; from svc._core import netns; netns.Socket(os.open({sandbox.netns.path!r}, os.O_RDONLY)); print('alive')"
    )
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "lost.so")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=CORE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -6
    assert (done.stdout, done.stderr) == ("", "svc: a thread cannot leave the network namespace of a pod\n")


def test_sysctls_are_written_through_another_folder(sandbox: Side, tmp_path: Path) -> None:
    """An agent in a container has a writable /proc/sys of the host there. Without it, the error names the path."""
    path, place = "net/ipv4/conf/default/arp_ignore", tmp_path / "sys"
    place.symlink_to("/proc/sys")
    netns.write_sysctls(sandbox.fd, [(path, "2")], folder=str(place))
    assert sandbox.netns.sysctl(path) == "2"
    with pytest.raises(FileNotFoundError) as failure:
        netns.write_sysctls(sandbox.fd, [(path, "1")], folder="/nowhere")
    assert failure.value.filename == path


def test_folder_replaces_an_own_procfs_that_is_not_allowed(sandbox: Side, tmp_path: Path) -> None:
    """A filter of system calls may forbid it. The process that tries has no right to mount."""
    path, place = "net/ipv4/conf/default/arp_ignore", tmp_path / "sys"
    (place / path).parent.mkdir(parents=True)
    (place / path).write_text("7")
    program = f"from svc._core import netns; print(netns.read_sysctls(-1, [{path!r}], netns.Procfs({str(place)!r})))"
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['7']\n"
