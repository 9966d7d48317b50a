"""Tokens of network configurations: they are not stored, and every call uses the newest one."""

from svc.attach.token_cache import TokenCache, without_secrets

ROOT = "https://10.0.0.1:6443"
SETTINGS = {"kind": "orch", "orch_api_root": ROOT}


def test_stored_settings_have_no_token() -> None:
    assert without_secrets(SETTINGS | {"k8s_auth_token": "t"}) == SETTINGS


def test_newest_token_is_used() -> None:
    """This holds also for settings of an earlier version, which were stored with a token."""
    tokens = TokenCache()
    for token in ("old", "new"):
        tokens.store(SETTINGS | {"k8s_auth_token": token})
    assert tokens.with_token(SETTINGS) == SETTINGS | {"k8s_auth_token": "new"}
    assert tokens.with_token(SETTINGS | {"k8s_auth_token": "older"}) == SETTINGS | {"k8s_auth_token": "new"}


def test_token_that_was_removed_from_the_configuration_is_not_used() -> None:
    tokens = TokenCache()
    tokens.store(SETTINGS | {"k8s_auth_token": "t"})
    tokens.store(SETTINGS)
    assert tokens.with_token(SETTINGS) == SETTINGS


def test_each_server_has_its_own_token() -> None:
    tokens = TokenCache()
    tokens.store(SETTINGS | {"k8s_auth_token": "t"})
    other = {"kind": "orch", "orch_api_root": "https://10.0.0.2:6443"}
    assert tokens.with_token(other) == other


def test_settings_of_an_unknown_server_do_not_change() -> None:
    tokens = TokenCache()
    assert tokens.with_token(SETTINGS | {"k8s_auth_token": "own"}) == SETTINGS | {"k8s_auth_token": "own"}
    assert tokens.with_token({"kind": "embedded"}) == {"kind": "embedded"}
