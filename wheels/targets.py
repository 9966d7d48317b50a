"""The wheels that are built: one for each Python, C library and machine."""

import argparse
from dataclasses import dataclass
from itertools import product
from typing import Final

PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13", "3.14")
GLIBC, MUSL = "manylinux", "musllinux"
LIBRARIES: Final = (GLIBC, MUSL)
MACHINES: Final = ("x86_64", "aarch64")

_ZIG_LIBRARY: Final = {GLIBC: "gnu.2.17", MUSL: "musl"}
_PLATFORM: Final = {GLIBC: "manylinux_2_17", MUSL: "musllinux_1_2"}
_SUFFIX_LIBRARY: Final = {GLIBC: "gnu", MUSL: "musl"}


@dataclass(frozen=True)
class Target:
    """A wheel: its Python, C library and machine. Its name is such as cp312-musllinux-aarch64."""

    python: str
    library: str
    machine: str

    def __str__(self) -> str:
        return f"{self.tag}-{self.library}-{self.machine}"

    @property
    def tag(self) -> str:
        """The tag of the interpreter, which is also that of its ABI."""
        return f"cp{self.python.replace('.', '')}"

    @property
    def platform(self) -> str:
        """The platform tag (PEP 600, PEP 656)."""
        return f"{_PLATFORM[self.library]}_{self.machine}"

    @property
    def zig(self) -> str:
        """What zig calls machine and C library of the extensions."""
        return f"{self.machine}-linux-{_ZIG_LIBRARY[self.library]}"

    @property
    def zig_static(self) -> str:
        """The same for the executable, which is static with each C library."""
        return f"{self.machine}-linux-musl"

    @property
    def suffix(self) -> str:
        """The suffix of extension modules (PEP 3149)."""
        return f".cpython-{self.python.replace('.', '')}-{self.machine}-linux-{_SUFFIX_LIBRARY[self.library]}.so"


ALL: Final = tuple(Target(*each) for each in product(PYTHONS, LIBRARIES, MACHINES))


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose targets. One that no name contains is wrong use, before anything is built."""
    parser.add_argument(
        "targets", nargs="*", type=_pattern, metavar="TARGET", help="a part of the names of wheels [all wheels]"
    )


def _pattern(text: str) -> str:
    try:
        targets_of([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def targets_of(patterns: list[str]) -> list[Target]:
    """Return the targets whose names contain one of the patterns; all of them without a pattern.

    Raise ValueError for a pattern that no name contains."""
    if not patterns:
        return list(ALL)
    for pattern in patterns:
        if not any(pattern in str(each) for each in ALL):
            raise ValueError(f"{pattern!r} is not part of a wheel's name: {', '.join(map(str, ALL))}")
    return [each for each in ALL if any(pattern in str(each) for pattern in patterns)]
