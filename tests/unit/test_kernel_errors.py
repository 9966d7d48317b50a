"""Errors of kernel settings that cannot be read or written."""

import errno

import pytest

from svc.dataplane.kernel import sysctl_failed

PATH = "/proc/sys/net/ipv4/ip_forward"


@pytest.mark.parametrize("name", [PATH, PATH.removeprefix("/proc/sys/")], ids=["absolute", "relative"])
@pytest.mark.parametrize("attempt", ["read", "write"])
def test_setting_is_named_once(name: str, attempt: str) -> None:
    """The path is absolute even if the OSError has a relative one."""
    error = sysctl_failed(OSError(errno.EACCES, "Permission denied", name), attempt)
    assert error.msg == f"cannot {attempt} {PATH}: Permission denied"
