"""The commit that the installed package was built from, which the build writes into the metadata of the distribution."""

from importlib.metadata import PackageNotFoundError, distribution

import svc

FILE = "commit"  # beside METADATA


def build_commit() -> str:
    """Return the commit, with `-dirty` if files differed from it; empty if the build did not know it, as that of an sdist."""
    try:
        text = distribution(svc.__distribution__).read_text(FILE)
    except PackageNotFoundError:  # a source tree that is not installed
        return ""
    return (text or "").strip()
