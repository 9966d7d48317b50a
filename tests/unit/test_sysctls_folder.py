"""The variable that names the folder of the host's sysctls."""

from pathlib import Path

import pytest

from svc.dataplane.sysctls import SYSCTLS, VARIABLE, sysctls_folder
from svc.model.errors import CallerError


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}])
def test_default_is_that_of_the_process(environment: dict[str, str]) -> None:
    assert sysctls_folder(environment) == SYSCTLS


def test_folder_with_sysctls_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "net" / "ipv4").mkdir(parents=True)
    (tmp_path / "net" / "ipv4" / "ip_forward").touch()
    assert sysctls_folder({VARIABLE: f"{tmp_path}/"}) == str(tmp_path)


@pytest.mark.parametrize(
    ("value", "words"),
    [("proc/sys", "is not an absolute path"), ("/nowhere", "has no net/ipv4/ip_forward"), ("/proc", "has no net/ipv4")],
)
def test_other_value_is_refused(value: str, words: str) -> None:
    """The error names the variable, the value and a remedy."""
    with pytest.raises(CallerError, match=words) as refusal:
        sysctls_folder({VARIABLE: value})
    assert f"{VARIABLE} = '{value}'" in refusal.value.msg
    assert "mount" in refusal.value.details
