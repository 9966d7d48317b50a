"""Tokens of a network configuration: stored copies lack them, and every user gets the newest."""

from svc.attach.token_cache import TokenCache, without_secrets

ROOT = "https://10.0.0.1:6443"
SETTINGS = {"kind": "orch", "orch_api_root": ROOT}


def test_what_is_written_down_has_no_token() -> None:
    assert without_secrets(SETTINGS | {"k8s_auth_token": "t"}) == SETTINGS


def test_newest_token_counts() -> None:
    """Also for rows of before, which have one of their own."""
    tokens = TokenCache()
    for token in ("old", "new"):
        tokens.store(SETTINGS | {"k8s_auth_token": token})
    assert tokens.with_token(SETTINGS) == SETTINGS | {"k8s_auth_token": "new"}
    assert tokens.with_token(SETTINGS | {"k8s_auth_token": "older"}) == SETTINGS | {"k8s_auth_token": "new"}


def test_token_that_is_gone_from_the_configuration_is_forgotten() -> None:
    tokens = TokenCache()
    tokens.store(SETTINGS | {"k8s_auth_token": "t"})
    tokens.store(SETTINGS)
    assert tokens.with_token(SETTINGS) == SETTINGS


def test_servers_are_kept_apart() -> None:
    tokens = TokenCache()
    tokens.store(SETTINGS | {"k8s_auth_token": "t"})
    other = {"kind": "orch", "orch_api_root": "https://10.0.0.2:6443"}
    assert tokens.with_token(other) == other


def test_what_nobody_has_taught_stays_as_it_is() -> None:
    tokens = TokenCache()
    assert tokens.with_token(SETTINGS | {"k8s_auth_token": "own"}) == SETTINGS | {"k8s_auth_token": "own"}
    assert tokens.with_token({"kind": "embedded"}) == {"kind": "embedded"}
