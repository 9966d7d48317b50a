"""Names of values that may be secrets: keys of documents, headers, variables and options."""

import re
from functools import cache
from typing import Any, Final

_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ANYWHERE: Final = re.compile(  # in a name without its separators
    "token|passw|passphrase|passcode|secret|credential|apikey|accesskey|privatekey|presharedkey|keydata|certificatedata"
    "|authorization|cookie|webhook|signature|bearer"
)
_WORDS: Final = frozenset(("auth", "pass", "pw", "pwd", "psk", "sig", "jwt", "creds", "cred", "otp"))
_KEYS: Final = frozenset(("key", "keys"))  # their values may also be paths of files
_PUBLIC_ENDS: Final = ("file", "path", "dir", "name", "expiry", "expires", "seconds")
_DIRECTORIES: Final = "etc|var|run|root|home|opt|usr|tmp|srv|mnt|proc|lib|data|host"
_PATH: Final = re.compile(rf"/(?:(?:{_DIRECTORIES})(?:/[\w.@-]+)+|(?:[\w.@-]+/)*[\w@-]+\.(?:pem|key|crt|cert|conf|ya?ml|json))")
_EXPIRY: Final = {"server", "expires", "seconds_left"}  # what svc shows of a token

HINT: Final = re.compile(  # a part of every name that is a secret's
    r"token|pass|pw|secret|cred|key|auth|cookie|psk|sig|hook|jwt|otp|bearer|(?:certificate|key)-data", re.IGNORECASE
)


@cache
def is_secret(name: str) -> bool:
    """Return whether values with this name may be secrets."""
    words = [word.lower() for word in _PARTS.findall(name)]
    joined = "".join(words)
    if "webhook" in joined:  # its path is the secret
        return True
    if joined.endswith(_PUBLIC_ENDS):
        return False
    return bool(_ANYWHERE.search(joined)) or not (_WORDS | _KEYS).isdisjoint(words)


def is_public(name: str, value: Any) -> bool:
    """Return whether the value says nothing secret: it is empty, a path in place of a key, or the expiry of tokens."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return True
    if isinstance(value, str):
        return is_path(name, value)
    return isinstance(value, list) and all(isinstance(each, dict) and each.keys() == _EXPIRY for each in value)


def is_path(name: str, value: str) -> bool:
    """Return whether the value of a key is a path of a file in place of the key itself."""
    words = [word.lower() for word in _PARTS.findall(name)]
    return not _KEYS.isdisjoint(words) and not _ANYWHERE.search("".join(words)) and bool(_PATH.fullmatch(value))
