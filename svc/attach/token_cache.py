"""Tokens that stand in a network configuration itself. They are kept in memory alone: the journal has none, and need not have
one, for every call brings its own along, and a newer one counts for what older attachments still owe.

After a start, debts in such a datastore are paid from the first call of its network on.
"""

from typing import Final

Settings = dict[str, str]

_SECRETS: Final = ("k8s_auth_token",)
_KINDS: Final = ("orch",)  # of datastores that have any


def without_secrets(settings: Settings) -> Settings:
    """As it may be written down; always a copy."""
    return {name: value for name, value in settings.items() if name not in _SECRETS}


class Credentials:
    """Of this process, by the settings that they belong to. From any thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, str], ...], Settings] = {}

    def learn(self, settings: Settings) -> None:
        """What a call brings along; nothing to learn where there are no secrets, or none any more."""
        if settings["kind"] in _KINDS:
            self._known[_key(settings)] = {name: settings[name] for name in _SECRETS if name in settings}

    def completed(self, settings: Settings) -> Settings:
        """With what was learnt last, if anything was."""
        if settings["kind"] not in _KINDS:
            return settings
        known = self._known.get(_key(settings))
        return settings if known is None else without_secrets(settings) | known


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(without_secrets(settings).items()))
