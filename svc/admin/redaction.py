"""Removal of secrets from texts of any form: JSON, YAML, command lines, headers, URLs, keys and tokens.

The removal covers too much rather than too little: every value whose name may be that of a secret, and long encoded values.
Names, addresses and paths stay.
"""

import re
from typing import Final

REMOVED: Final = "(removed)"

_NAME: Final = (  # of a secret, from the word that says so
    r"(?:token|passw(?:or)?d|passphrase|passcode|secret|credential|api[_-]?key|access[_-]?key|private[_-]?key|key-data"
    r"|certificate-data|preshared[_-]?key|authorization|cookie|\bpsk\b)[\w.-]*"
    r"(?<!file)(?<!path)(?<!dir)(?<!name)"  # names of values that are public
)
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_ESCAPED: Final = r'\\"(?:[^"\\]|\\[^"])*\\"'  # a string in JSON within JSON
_NOT_EMPTY: Final = r"(?!null\b|true\b|false\b|\(removed)"
_BARE: Final = r"[^\s,;&\"'\\\[\]{}()]+"

_VALUE: Final = re.compile(  # of a secret after its name; one scan for all forms, because the names are the slow part
    rf"({_NAME})(?:"
    rf"(\\\"\s*:\s*){_ESCAPED}"
    rf"|([\"']?[ \t]*[:=][ \t]*)(?:{_QUOTED})"
    r"|([\"']?[ \t]*:)[ \t]*[|>][-+0-9]*(?:\n[ \t]+.*|\n(?=\n))+"  # a block of YAML
    r"|([\"']?[ \t]*:[ \t]*\n[ \t]+)[^\s:]+$"  # YAML, on the next line
    rf"|([\"']?[ \t]*:[ \t]+){_NOT_EMPTY}[^\s\[{{\"'\\][^\n,;\"'{{}}\]\\]*"  # a text with spaces
    rf"|([\"']?[ \t]*[:=][ \t]*){_NOT_EMPTY}{_BARE}"
    r")",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTES: Final = {2: '\\"', 3: '"'}  # around the value, by the number of the group that matched

_RULES: Final = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (r"-----BEGIN [^-\n]*-----.*?(?:-----END [^-\n]*-----|\Z)", re.DOTALL, REMOVED),  # keys and certificates (PEM)
        (r"(?:^[A-Za-z0-9+/=]{1,80}\r?\n)+-----END [^-\n]*-----", re.MULTILINE, REMOVED),  # whose begin is missing
        (r"\b(Authorization|Proxy-Authorization|Cookie|Set-Cookie|X-[\w-]*(?:Token|Key|Auth)[\w-]*)(\s*[:=]\s*)[^\r\n\"'\\]+",
         re.IGNORECASE, rf"\1\2{REMOVED}"),
        (r"\b(Bearer|Basic|Negotiate|Digest)\s+[\w.+/=~-]{6,}", re.IGNORECASE, rf"\1 {REMOVED}"),
        (r"(\w://)[^/\s\"'\\]*@", 0, rf"\1{REMOVED}@"),  # user and password of a URL
        (r"(\w://[^\s\"'\\?#<>]*[?#])[^\s\"'\\<>]+", 0, rf"\1{REMOVED}"),  # query of a URL
        (rf"(--[\w-]*{_NAME}\s+)(?:{_QUOTED}|{_BARE})", re.IGNORECASE, rf"\1{REMOVED}"),
        (r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*", 0, REMOVED),  # JSON Web Tokens
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", 0, REMOVED),  # access keys of AWS
        (r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AIza)[\w-]{16,}", 0, REMOVED),  # tokens of well-known services
        (r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b", 0, REMOVED),  # bootstrap tokens of Kubernetes
        (r"\bssh-(?:rsa|ed25519|dss) [A-Za-z0-9+/=]{20,}", 0, REMOVED),
        (r"\$(?:1|2[aby]|5|6|y|argon2id?)\$[\w./$=,+-]{8,}", 0, REMOVED),  # hashes of passwords
        (r"(?<![\w+/=-])[A-Za-z0-9+/]{43}=(?![\w+/=])", 0, REMOVED),  # 32 bytes in Base64, as keys of WireGuard
        (r"^[A-Za-z0-9+/]{60,}={0,2}$", re.MULTILINE, REMOVED),  # a line of an encoded key
        (r"[A-Za-z0-9+/_-]{160,}={0,2}", 0, REMOVED),  # encoded values
    )
)  # fmt: skip


def redacted(text: str) -> str:
    """Return the text without secrets."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _VALUE.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    form = match.lastindex or 0
    quote = _QUOTES.get(form, "")
    return f"{match[1]}{match[form]}{quote}{REMOVED}{quote}"
