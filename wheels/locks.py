"""The lock files in requirements/: exact versions with the hashes of their files."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOCKS: Final = Path(__file__).parent.parent / "requirements"
_ENTRY: Final = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))? \\\n(?P<hashes>(?: {4}--hash.*\n)+)", re.M
)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Locked:
    """A distribution: `marker` says for which Pythons and machines, `text` is its entry in the lock file."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    text: str


def read_lock(name: str) -> list[Locked]:
    """Return the distributions of a lock file, such as node.txt."""
    return list(_entries((LOCKS / name).read_text()))


def _entries(text: str) -> Iterator[Locked]:
    for found in _ENTRY.finditer(text):
        hashes = tuple(sorted(_HASH.findall(found["hashes"])))
        yield Locked(found["name"], found["version"], (found["marker"] or "").strip(), hashes, found[0])


def without(locked: Iterable[Locked], others: Iterable[Locked]) -> list[Locked]:
    """Return the distributions whose names are not among others."""
    names = {each.name for each in others}
    return [each for each in locked if each.name not in names]
