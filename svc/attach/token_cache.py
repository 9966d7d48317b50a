"""Cache of tokens from network configurations.

Tokens stay in memory and are not in the journal, because every call has a token in its network configuration. Pending releases
of older attachments use the newest one. After a start, releases in such a datastore stay pending until the first call of its
network.
"""

from typing import Final

Settings = dict[str, str]

_SECRETS: Final = ("k8s_auth_token",)
_KINDS: Final = ("orch",)  # of datastores with tokens


def without_secrets(settings: Settings) -> Settings:
    """Return a copy of the settings that may be stored on disk."""
    return {name: value for name, value in settings.items() if name not in _SECRETS}


class TokenCache:
    """The tokens of this process, by the other settings of their datastore. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, str], ...], Settings] = {}

    def store(self, settings: Settings) -> None:
        """Store the token of a call, or its absence, if the kind of datastore can have one."""
        if settings["kind"] in _KINDS:
            self._known[_key(settings)] = {name: settings[name] for name in _SECRETS if name in settings}

    def with_token(self, settings: Settings) -> Settings:
        """Return the settings with the token that was stored last, if any."""
        if settings["kind"] not in _KINDS:
            return settings
        known = self._known.get(_key(settings))
        return settings if known is None else without_secrets(settings) | known


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(without_secrets(settings).items()))
