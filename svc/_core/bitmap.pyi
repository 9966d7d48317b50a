"""Ordinals of one address block: a block of 2**bits addresses, 0 <= bits <= 12."""

from collections.abc import Iterable, Sequence
from typing import final

MAX_BITS: int  # 12

@final
class OrdinalSet:
    """A set of ordinals below `size`; used for reserved addresses. `size` is 1..4096 (ValueError otherwise)."""

    def __new__(cls, size: int, ordinals: Iterable[int] = ()) -> OrdinalSet: ...
    @property
    def size(self) -> int: ...
    def add_range(self, first: int, last: int) -> None:
        """Add first..last, both included; IndexError outside 0..size-1 or if first > last."""
    def __contains__(self, ordinal: int, /) -> bool: ...
    def __len__(self) -> int: ...

@final
class Ordinals:
    """Which ordinals of a block are taken, by which tag, and in what order the free ones are handed out.

    A tag is a number 0..32767 (an index into the block's attribute list). Free ordinals are in a FIFO queue:
    allocation takes the head, release appends to the tail. Reserved ordinals are skipped but keep their place.
    """

    def __new__(cls, bits: int) -> Ordinals:
        """All free, queue ascending. ValueError unless 0 <= bits <= 12."""
    @staticmethod
    def load(allocations: Sequence[int | None], unallocated: Sequence[int]) -> Ordinals:
        """From the datastore's two lists. ValueError (with what is wrong and where) if the number of allocations
        is not a power of two up to 4096, a tag is out of range, or `unallocated` is not exactly the free ordinals, each once."""
    @property
    def size(self) -> int: ...
    @property
    def free(self) -> int:
        """Ordinals that are not taken, reserved ones included."""
    @property
    def used(self) -> int: ...
    def available(self, reserved: OrdinalSet | None = None) -> int:
        """Free ordinals that are not reserved."""
    def allocate(self, tag: int, reserved: OrdinalSet | None = None) -> int:
        """Take the first free ordinal of the queue that is not reserved; -1 if there is none."""
    def allocate_many(self, count: int, tag: int, reserved: OrdinalSet | None = None) -> list[int]:
        """Take up to `count` ordinals, in queue order; fewer when the block runs out."""
    def allocate_at(self, ordinal: int, tag: int) -> bool:
        """Take this ordinal; False if it is already taken. IndexError outside the block."""
    def release(self, ordinal: int) -> bool:
        """Release it to the tail of the queue; False if it was free. IndexError outside the block."""
    def release_many(self, ordinals: Iterable[int]) -> int:
        """Release in the given order; return how many were taken."""
    def tag(self, ordinal: int) -> int:
        """The tag, or -1 if free. IndexError outside the block."""
    def retag(self, ordinal: int, tag: int) -> None:
        """Change the tag of a taken ordinal; KeyError if it is free, IndexError outside the block."""
    def tagged(self, tag: int) -> list[int]:
        """Ordinals with this tag, ascending."""
    def renumber(self, new_tags: Sequence[int]) -> None:
        """Replace every tag t by new_tags[t]; IndexError if a tag in use is not covered (then nothing changed)."""
    def allocations(self) -> list[int | None]:
        """The datastore's shape: tag or None by ordinal."""
    def unallocated(self) -> list[int]:
        """The datastore's shape: the queue, head first."""
    def copy(self) -> Ordinals: ...
    def __contains__(self, ordinal: int, /) -> bool:
        """True if taken."""
    def __eq__(self, other: object, /) -> bool:
        """Same tags and same queue order."""
