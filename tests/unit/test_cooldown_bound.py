"""The cooldown has the same upper bound in every datastore."""

import pytest

from harness.ipam import instruct
from svc.ipam.settings import MAX_COOLDOWN_SECONDS, check_settings, cooldown_of
from svc.model.errors import CallerError
from svc.model.ipam import IpamConfig


def test_longer_cooldown_is_refused() -> None:
    check_settings(IpamConfig(cooldown_seconds=MAX_COOLDOWN_SECONDS), instruct)
    with pytest.raises(CallerError, match="ipCooldownSeconds = 1201 is more than 1200"):
        check_settings(IpamConfig(cooldown_seconds=MAX_COOLDOWN_SECONDS + 1), instruct)


def test_longer_cooldown_of_another_program_is_limited() -> None:
    assert cooldown_of(IpamConfig(cooldown_seconds=10**15)).seconds == MAX_COOLDOWN_SECONDS
