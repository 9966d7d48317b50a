"""Removal of the values of secrets in text, by the names before them: of JSON, YAML, assignments, headers and sentences."""

import json
import re
from collections.abc import Iterator
from typing import Final

from svc.admin.secret_names import HINT, is_path, is_public, is_secret

REMOVED: Final = "(removed)"

_LONGEST: Final = 200  # characters of a name
_BEFORE: Final = re.compile(r"[\w.-]*\Z")
_AFTER: Final = re.compile(r"[\w.-]*")
_SEPARATOR: Final = re.compile(r"""(\\*["'`]?)[ \t]*(=>|->|:=|[:=])[ \t]*""")
_SPACE: Final = re.compile(r"""[ \t]+(?=\\*["'])""")  # before a value in quotes
_BRACKET: Final = re.compile(r"""(\\*)(["'])|[\[{]|[\]}]|\n(?![ \t"'\]}])""")
_QUOTED: Final = re.compile(r"""[bBuUrR]?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.DOTALL)
_ESCAPED: Final = re.compile(r"""\\+(["'])(?:[^"'\\]|\\+(?!\1|\\)|\\\\+\1)*\\+\1""")  # in JSON within JSON
_LINE: Final = re.compile(r"[^\n]*")
_BLOCK: Final = re.compile(r"[|>][-+0-9]*[ \t]*(?=\n)")  # of YAML
_KEPT: Final = re.compile(r"""(?:null|true|false)\b|\\*["']?\(removed""")
_SPACED: Final = re.compile(r"""[^\n,;"'{}\]\\]+""")
_WORD: Final = re.compile(r"""[^\s,;&"'\\]+""")
_NEXT_LINE: Final = re.compile(r"(?:[ \t]*\r?\n)+[ \t]*")
_ALONE: Final = re.compile(r"""["']?[^\s:="']+["']?[ \t]*(?=\r?\n|\Z)""")  # the only word of its line


def without_values(text: str) -> str:
    """Return the text without the values that follow names of secrets."""
    return "".join(_parts(text))


def _parts(text: str) -> Iterator[str]:
    done = searched = 0
    while hint := HINT.search(text, searched):
        start, end = _name_at(text, hint)
        searched = max(end, hint.end())
        if is_secret(text[start:end]) and (value := _value_after(text, start, end)):
            first, last, removed = value
            yield text[done:first] + removed
            done = searched = last
    yield text[done:]


def _name_at(text: str, hint: re.Match[str]) -> tuple[int, int]:
    """Return start and end of the whole name."""
    first = max(0, hint.start() - _LONGEST)
    before = _BEFORE.search(text[first : hint.start()])
    after = _AFTER.match(text, hint.end(), hint.end() + _LONGEST)
    assert before is not None
    assert after is not None
    return first + before.start(), after.end()


def _value_after(text: str, start: int, end: int) -> tuple[int, int, str] | None:
    """Return start, end and replacement of the value of the name; None if it has no value, or a public one."""
    separator = _SEPARATOR.match(text, end)
    if separator is None:
        space = _SPACE.match(text, end)
        return _in_quotes(text, space.end(), text[start:end]) if space else None
    position = separator.end()
    if _KEPT.match(text, position):
        return None
    if text.startswith(("[", "{"), position):
        return _in_brackets(text, position, text[start:end])
    if quoted := _in_quotes(text, position, text[start:end]):
        return quoted
    if text.startswith(("\n", "\r\n"), position) or _BLOCK.match(text, position):
        return _below(text, start - len(separator[1]), position, separator[2])
    bare = _SPACED if separator[2] == ":" and text[position - 1].isspace() else _WORD
    value = bare.match(text, position)
    return _unless_path(text[start:end], value) if value and value[0].strip() else None


def _unless_path(name: str, value: re.Match[str]) -> tuple[int, int, str] | None:
    return None if is_path(name, value[0].strip()) else (value.start(), value.end(), REMOVED)


def _in_quotes(text: str, position: int, name: str) -> tuple[int, int, str] | None:
    if _KEPT.match(text, position):
        return None
    if quoted := _QUOTED.match(text, position):
        inner, quote = quoted[1][1:-1], quoted[1][0]
        return None if not inner or is_path(name, inner) else (position, quoted.end(), f"{quote}{REMOVED}{quote}")
    if escaped := _ESCAPED.match(text, position):
        quote = re.match(r"\\+.", escaped[0])
        assert quote is not None
        return position, escaped.end(), f"{quote[0]}{REMOVED}{quote[0]}"
    if text.startswith(('"', "'"), position):  # its end is missing, as in a text that was cut
        line = _LINE.match(text, position)
        return (position, line.end(), REMOVED) if line else None
    return None


def _in_brackets(text: str, position: int, name: str) -> tuple[int, int, str] | None:
    """Return the whole array or object; without its end, all until the next line that may not belong to it."""
    depth, quote, end = 0, "", len(text)
    for found in _BRACKET.finditer(text, position):
        if found[2]:
            if not quote:
                quote = found[0]
            elif found[2] == quote[-1] and (found[0] == quote or (len(quote) == 1 and len(found[1]) % 2 == 0)):
                quote = ""
        elif found[0] == "\n":
            end = found.start()
            break
        elif not quote:
            depth += 1 if found[0] in "[{" else -1
            if not depth:
                end = found.end()
                break
    value = text[position:end]
    return None if _is_public_text(name, value) else (position, end, REMOVED if "\\" in value else f'"{REMOVED}"')


def _is_public_text(name: str, value: str) -> bool:
    if value in ("[]", "{}"):
        return True
    if '"seconds_left"' not in value:  # most values are not, and parsing takes time
        return False
    try:
        return is_public(name, json.loads(value))
    except (ValueError, RecursionError):
        return False


def _below(text: str, start: int, position: int, sign: str) -> tuple[int, int, str] | None:
    """Return the lines below a name of YAML, or the word on the next line."""
    begin = text.rfind("\n", 0, start) + 1
    column = start - begin
    is_yaml = sign == ":" and not text[begin:start].strip(" \t-\"'")
    deeper = re.compile(
        rf"(?:[|>][-+0-9]*)?(?:[ \t]*\r?\n(?:[ \t]{{{column + 1},}}[^\n]*|[ \t]{{{column}}}-[ \t][^\n]*|(?=\r?\n)))+"
    )
    if is_yaml and (lines := deeper.match(text, position)) and lines[0].strip():
        return None if _KEPT.match(lines[0].strip()) else (position, lines.end(), f" {REMOVED}")
    gap = _NEXT_LINE.match(text, position)
    value = (_LINE if sign == "=" else _ALONE).match(text, gap.end()) if gap else None
    if value is None or not value[0].strip() or _KEPT.match(value[0]):
        return None
    return value.start(), value.end(), REMOVED
