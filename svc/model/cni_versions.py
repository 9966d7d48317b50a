"""The supported CNI versions, and what each allows."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from svc.model.errors import CallerError, Code
from svc.model.field_errors import display

SUPPORTED: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
LATEST: Final = SUPPORTED[-1]

MINIMUM: Final = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"}  # verbs that 0.1.0 does not have

Version = tuple[int, int, int]


@lru_cache(maxsize=32)
def parse(text: str) -> Version:
    """Parse MAJOR.MINOR.PATCH in decimal. Raise ValueError for other text."""
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise ValueError(f"{text!r} is not a version: write it as MAJOR.MINOR.PATCH")
    major, minor, patch = map(int, parts)
    return major, minor, patch


def at_least(version: str, minimum: str) -> bool:
    """Return True if `version` is `minimum` or newer."""
    return parse(version) >= parse(minimum)


def negotiate(text: str | None) -> str:
    """Return the version for a cniVersion; 0.1.0 if it is missing. Raise CallerError if it is not supported."""
    version = text or SUPPORTED[0]
    if version not in SUPPORTED:
        raise _incompatible(f"CNI version {display(version)} is not supported", SUPPORTED)
    return version


def require(verb: str, version: str) -> None:
    """Raise CallerError if the version does not have the verb."""
    minimum = MINIMUM.get(verb)
    if minimum is not None and not at_least(version, minimum):
        later = SUPPORTED[SUPPORTED.index(minimum) :]
        raise _incompatible(f"config version {version!r} does not allow {verb}, which came with {minimum!r}", later)


def _incompatible(msg: str, remedies: Sequence[str]) -> CallerError:
    versions = f"one of the supported versions: {', '.join(remedies)}" if len(remedies) > 1 else remedies[0]
    return CallerError(msg, details=f"cniVersion: set {versions}", code=Code.INCOMPATIBLE_VERSION)
