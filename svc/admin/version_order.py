"""The order of versions with pre-releases: those of Python packages (1.2.0rc1), and semantic ones (v1.2.0-rc.1).

What follows a dash is a pre-release if it begins with a number or with a word for one. Any other word names a build, such as
that for a machine (v1.2.0-amd64), and does not count.
"""

import re
from collections.abc import Iterator
from typing import Final

Part = tuple[int, int, str]
Order = tuple[tuple[int, ...], tuple[Part, ...], int, tuple[int, int]]

_RELEASE: Final = r"v?(?P<release>[0-9]+(?:\.[0-9]+)*)"
_BUILD: Final = r"(?:\+[0-9A-Za-z.-]+)?"  # does not count
_OF_PACKAGES: Final = re.compile(
    rf"{_RELEASE}(?:(?P<phase>a|b|rc)(?P<number>[0-9]+))?(?:\.post(?P<post>[0-9]+))?(?:\.dev(?P<dev>[0-9]+))?{_BUILD}"
)
_SEMANTIC: Final = re.compile(rf"{_RELEASE}-(?P<parts>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*){_BUILD}")
_PRE_RELEASE: Final = re.compile(
    r"(?P<word>alpha|a|beta|b|rc|dev|preview|pre|snapshot|nightly)(?P<number>[0-9]*)", re.IGNORECASE
)
_PHASES: Final = {"a": "alpha", "b": "beta", "rc": "rc"}
_DEVELOPED: Final = ((-1, 0, ""),)  # before each pre-release
_FINAL: Final = ((2, 0, ""),)  # after each pre-release
_NO_POST: Final = -1
_NO_DEV: Final = (1, 0)


def order_of(version: str) -> Order | None:
    """Return a value that compares as the version does; None for other text. What follows `+` does not count."""
    if found := _OF_PACKAGES.fullmatch(version):
        phase, post, dev = found["phase"], found["post"], found["dev"]
        if phase:
            parts: tuple[Part, ...] = (_part(_PHASES[phase]), _part(found["number"]))
        else:
            parts = _DEVELOPED if dev and not post else _FINAL
        return _release(found["release"]), parts, int(post) if post else _NO_POST, (0, int(dev)) if dev else _NO_DEV
    if found := _SEMANTIC.fullmatch(version):
        return _release(found["release"]), _parts_of(found["parts"]), _NO_POST, _NO_DEV
    return None


def _parts_of(text: str) -> tuple[Part, ...]:
    """Return the parts of a pre-release, without words about its build; those of a release if the text has nothing else."""
    first, *others = text.split("-")
    if not _is_pre_release(first):
        return _FINAL
    words = [first, *filter(_is_pre_release, others)]
    return tuple(part for word in words for piece in word.split(".") for part in _split(piece))


def _is_pre_release(word: str) -> bool:
    first = word.partition(".")[0]
    return first.isdecimal() or _PRE_RELEASE.fullmatch(first) is not None


def _split(piece: str) -> Iterator[Part]:
    """Yield the parts of a word that may have its number at its end, as rc1."""
    found = _PRE_RELEASE.fullmatch(piece)
    if found is None:
        yield _part(piece)
        return
    yield _part(_PHASES.get(found["word"].lower(), found["word"].lower()))
    if found["number"]:
        yield _part(found["number"])


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers without zeros at the end: 1.2 and 1.2.0 are the same release."""
    numbers = [int(number) for number in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _part(text: str) -> Part:
    """Return a part of a pre-release: numbers are before words."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
