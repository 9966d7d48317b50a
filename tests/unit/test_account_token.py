"""Tokens of service accounts: what they say of themselves, and when they are renewed."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.account_tokens import NAMESPACE, NODE, PLUGIN, MountedAccount, access_of, jwt, part
from svc.admin.account_token import SHORTEST_SECONDS, decode, is_of_plugin, seconds_until_renewal
from svc.model.errors import CallerError, Code

DAY = 86_400.0


def test_token_says_whose_it_is_and_how_long_it_is_valid() -> None:
    token = decode(jwt(PLUGIN, 1000.0, DAY, key="k7"))
    assert (token.subject, token.issued, token.expires, token.validity) == (PLUGIN, 1000.0, 1000.0 + DAY, DAY)
    assert token.issuer == "https://tests k7"


@pytest.mark.parametrize(
    "text",
    [
        "", "secret-1", "a.b", "a.b.c", "....", f"{part([])}.{part([])}.s", f"{part({})}.{part('x')}.s", "\xff.\xff.s",
        f"{part({})}.{part({'iat': 'x', 'exp': None})}.s", f"{part({})}.{part({'exp': 10 ** 400})}.s",
        f"{part({})}.{part({'exp': math.inf, 'iat': math.nan})}.s", f"{part({})}." + "W1tb" * 40_000 + ".s",
    ],
    ids=range(12),
)  # fmt: skip
def test_token_that_says_nothing_has_no_end(text: str) -> None:
    token = decode(text)
    assert (token.text, token.subject, token.validity) == (text, "", math.inf)


@given(st.text())
def test_any_text_is_a_token(text: str) -> None:
    assert decode(text).text == text


@given(st.floats(0, 10 * DAY), st.floats(0, 1), st.floats(-DAY, 20 * DAY))
def test_token_is_renewed_within_a_quarter_of_its_validity(validity: float, jitter: float, age: float) -> None:
    """The obvious twin: between three sixteenths and a quarter from its issue, and not before 5 s from now."""
    found = seconds_until_renewal(validity, age, lambda: jitter)
    earliest, latest = validity * 3 / 16 - max(age, 0), validity / 4 - max(age, 0)
    assert found == SHORTEST_SECONDS or earliest - 1e-6 <= found <= latest + 1e-6
    assert found >= SHORTEST_SECONDS
    if latest < SHORTEST_SECONDS:
        assert found == SHORTEST_SECONDS


@pytest.mark.parametrize(
    ("validity", "seconds"),
    [(DAY, 21_600.0), (3600.0, 900.0), (600.0, 150.0), (20.0, 5.0), (10.0, 5.0), (0.0, 5.0), (math.inf, math.inf)],
)
def test_validity_that_the_server_grants_counts(validity: float, seconds: float) -> None:
    """Servers grant less, or more, than was asked for."""
    assert seconds_until_renewal(validity, jitter=lambda: 0.0) == seconds


def test_nodes_spread_their_renewals() -> None:
    assert len({seconds_until_renewal(DAY) for _ in range(20)}) > 10


def test_only_the_plugins_account_of_the_pods_namespace_counts(tmp_path: Path) -> None:
    account = MountedAccount(tmp_path / "account")
    access = access_of(account.folder, tmp_path)
    assert not is_of_plugin(decode(jwt(PLUGIN, 0.0, DAY)), access)  # a folder made by hand
    account.write(namespace=NAMESPACE)
    assert is_of_plugin(decode(jwt(PLUGIN, 0.0, DAY)), access)
    for subject in (NODE, PLUGIN.replace(NAMESPACE, "other"), "", f"{PLUGIN}-2"):
        assert not is_of_plugin(decode(jwt(subject, 0.0, DAY)), access)


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    (tmp_path / "ca.crt").write_text("authority")
    with pytest.raises(CallerError, match="token' cannot be read: it is empty") as caught:
        access_of(tmp_path, tmp_path).files()
    assert caught.value.code == Code.IO_FAILURE
