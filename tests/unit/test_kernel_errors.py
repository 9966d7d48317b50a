"""What the dataplane tells of refused settings."""

import errno

import pytest

from svc.dataplane.kernel import sysctl_failed

PATH = "/proc/sys/net/ipv4/ip_forward"


@pytest.mark.parametrize("name", [PATH, PATH.removeprefix("/proc/sys/")], ids=["absolute", "relative"])
@pytest.mark.parametrize("attempt", ["read", "write"])
def test_setting_is_named_once(name: str, attempt: str) -> None:
    """However the failure spells it."""
    told = sysctl_failed(OSError(errno.EACCES, "Permission denied", name), attempt)
    assert told.msg == f"cannot {attempt} {PATH}: Permission denied"
