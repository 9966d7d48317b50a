"""Removal of secrets from documents and texts of any form: JSON, YAML, command lines, headers, URLs, keys and tokens.

The removal covers too much rather than too little: every value whose name may be that of a secret with all below it, and long
encoded values. Names, addresses and paths stay.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from svc.admin.secret_names import is_public, is_secret
from svc.admin.secret_values import REMOVED, without_values

_USERS: Final = ("-u", "-U", "--user", "--proxy-user")  # options with user and password
_SHORT: Final = "-p"  # an option with a password, unless a port or a path follows
_PORT: Final = r"[\d.:\[\]-]+(?:/\w+)?"
_PORT_OR_PATH: Final = re.compile(rf"{_PORT}|[./].*", re.DOTALL)
_NAMES: Final = ("name", "key")  # fields with the name of the value beside them
_DECODER: Final = json.JSONDecoder()
_START: Final = re.compile(r"^[\[{]", re.MULTILINE)  # of JSON
_MAX_FAILURES: Final = 1000  # texts that begin as JSON; each takes time in proportion to the whole text

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_OPTION: Final = r"--?[\w-]*(?:token|passw(?:or)?d|pass|passphrase|secret|credentials?|key|auth|pw)"
_NAMED: Final = r"[\w.-]*(?:token|pass|secret|credential|key|auth|pw|cookie)[\w.-]*"
_BETWEEN: Final = r"\\*[\"']?(?:\s*,\s*|[ \t]*=[ \t]*|[ \t]+|[ \t]*\n[ \t]*-[ \t]+)"  # words of a command line, or items
_WORD: Final = rf"(?:{_QUOTED}|\\\"[^\"\\]*\\\"|[^\s,\"'\]\\]+)"
_PAIR: Final = r"\w+=(?:\"[^\"]*\"|\\+\"[^\"\\]*\\+\"|[^\s,\"'\\]+)"  # of a Digest
_HEADERS: Final = r"Authorization|Proxy-Authorization|Cookie|Set-Cookie|X-[\w-]{0,40}(?:Token|Key|Auth)[\w-]*"
_SCHEMES: Final = r"Bearer|Basic|Negotiate|Digest"

_RULES: Final = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (r"-----BEGIN [^-\n]*-----.*?(?:-----END [^-\n]*-----|\Z)", re.DOTALL, REMOVED),  # keys and certificates (PEM)
        (r"(?:^[A-Za-z0-9+/=]{1,80}\r?\n)+-----END [^-\n]*-----", re.MULTILINE, REMOVED),  # whose begin is missing
        (rf"\b({_SCHEMES})\s+{_PAIR}(?:,?\s*{_PAIR})*", re.IGNORECASE, rf"\1 {REMOVED}"),
        (rf"\b({_HEADERS})(\s*[:=]\s*)[^\r\n\"'\\\[{{]+", re.IGNORECASE, rf"\1\2{REMOVED}"),
        (rf"\b({_SCHEMES})(?:\s|%20|\+)+[\w.+/=~%-]{{6,}}", re.IGNORECASE, rf"\1 {REMOVED}"),
        # user and password of a URL, and of an address without a scheme
        (r"(\w://)(?:[^/\s\"'\\]*|[^/\s\"'\\@:]*:(?:(?!://)[^\s\"'\\<>])*)@", 0, rf"\1{REMOVED}@"),
        (r"(?<![\w/.:-])[\w.%+-]+:[^\s\"'\\/@,]+@(?=[\w\[])", 0, rf"{REMOVED}@"),
        (r"(\w://[^\s\"'\\?#<>]*[?#])[^\s\"'\\<>]+", 0, rf"\1{REMOVED}"),  # query of a URL
        (r"(?<=[\w/\]])\?(?!\(removed)[^\s\"'\\<>]+", 0, rf"?{REMOVED}"),  # of a path
        (r"(\w://[^/\s\"'\\]*hook[^/\s\"'\\]*/|\w://[^\s\"'\\]*?/[^\s/\"'\\]*hooks?[^\s/\"'\\]*/)(?!\(removed)[^\s\"'\\<>]+",
         re.IGNORECASE, rf"\1{REMOVED}"),
        (rf"((?<![\w-])\\*[\"']?(?:-u|-U|--user|--proxy-user){_BETWEEN}\\*[\"']?)[^\s:,\"'\\]*:[^\s,\"'\]\\]+",
         0, rf"\1{REMOVED}"),
        (rf"(\\*[\"']{_SHORT}\\*[\"']\s*,\s*\\*[\"'])(?!\(removed|[./]|{_PORT}\\*[\"'])[^\"'\\]+", 0, rf"\1{REMOVED}"),
        (rf"((?<![\w-]){_OPTION}{_BETWEEN})(?!\(removed){_WORD}", re.IGNORECASE, rf"\1{REMOVED}"),
        (rf"(\b(?:name|key)\\*[\"']?\s*[:=]\s*\\*[\"']?{_NAMED}\\*[\"']?\s*,?\s*\\*[\"']?value\\*[\"']?\s*[:=]\s*)(?!\(removed){_WORD}",
         re.IGNORECASE, rf"\1{REMOVED}"),
        (rf"(\bvalue\\*[\"']?\s*:\s*)(?!\(removed){_WORD}(\s*,\s*\\*[\"']?(?:name|key)\\*[\"']?\s*:\s*\\*[\"']?{_NAMED})",
         re.IGNORECASE, rf"\1{REMOVED}\2"),
        (r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*", 0, REMOVED),  # JSON Web Tokens
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", 0, REMOVED),  # access keys of AWS
        (r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AIza)[\w-]{16,}", 0, REMOVED),  # tokens of well-known services
        (r"(?<![a-z0-9])[a-z0-9]{6}\.[a-z0-9]{16}(?![a-z0-9])", 0, REMOVED),  # bootstrap tokens of Kubernetes
        (r"\bssh-(?:rsa|ed25519|dss) [A-Za-z0-9+/=]{20,}", 0, REMOVED),
        (r"\$(?:1|2[aby]|5|6|y|argon2id?)\$[\w./$=,+-]{8,}", 0, REMOVED),  # hashes of passwords
        (r"(?<![\w+/=-])[A-Za-z0-9+/]{43}=(?![\w+/=])", 0, REMOVED),  # 32 bytes in Base64, as keys of WireGuard
        (r"^[A-Za-z0-9+/]{60,}={0,2}$", re.MULTILINE, REMOVED),  # a line of an encoded key
        (r"[A-Za-z0-9+/_-]{160,}={0,2}", 0, REMOVED),  # encoded values
    )
)  # fmt: skip


def redacted(text: str) -> str:
    """Return the text without secrets. JSON that begins a line is read as a document."""
    return "".join(_parts(text))


def _parts(text: str) -> Iterator[str]:
    done = failures = 0
    for start in _START.finditer(text):
        if start.start() < done or failures > _MAX_FAILURES:
            continue
        try:
            document, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            failures += 1
            continue
        yield _redacted_text(text[done : start.start()])
        yield _rewritten(document, text[start.start() : end])
        done = end
    yield _redacted_text(text[done:])


def _rewritten(document: Any, text: str) -> str:
    """Return the text of a document, changed only if it has a secret."""
    shown = redacted_document(document)
    return text if shown == document else json.dumps(shown, indent=1 if "\n" in text else None)


def redacted_document(value: Any) -> Any:
    """Return a document without secrets: all below the name of a secret is removed, and what each text has."""
    if isinstance(value, dict):
        return dict(_fields(value))
    if isinstance(value, list):
        return [_item(before, each) for before, each in zip([None, *value], value, strict=False)]
    return _redacted_text(value) if isinstance(value, str) else value


def _fields(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    names = [value for key, value in document.items() if key.lower() in _NAMES and isinstance(value, str)]
    is_named = any(map(is_secret, names))  # {"name": "DB_PASSWORD", "value": ...}
    for key, value in document.items():
        is_value = key.lower().startswith("value") and is_named
        is_name = key.lower() == "key" and "value" in document
        if (is_value or (is_secret(key) and not is_name)) and not is_public(key, value):
            yield _redacted_text(key), REMOVED
        else:
            yield _redacted_text(key), redacted_document(value)


def _item(before: Any, value: Any) -> Any:
    """Return an item of an array, which may be the word after an option."""
    is_text = isinstance(before, str) and isinstance(value, str)
    is_user = is_text and before in _USERS and ":" in value
    is_option = is_text and before.startswith("-") and "=" not in before and is_secret(before)
    is_password = is_text and before == _SHORT and not _PORT_OR_PATH.fullmatch(value)
    return REMOVED if is_user or is_option or is_password else redacted_document(value)


def _redacted_text(text: str) -> str:
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return without_values(text)
