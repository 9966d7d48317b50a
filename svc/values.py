"""Immutable dataclasses without the run-time cost of `frozen=True`.

mypy refuses an assignment to a field of a `frozen=True` class. Python would refuse it too, but then sets the fields of a new
object more slowly: 0.5 us for three fields, instead of 0.15 us. An ADD and its DEL create a hundred such objects. So the fields
of these classes are plain slots at run time. Equality and hash are those of a frozen dataclass.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen=False, **options):
        """Return the decorator of `dataclasses.dataclass`, with a hash instead of frozen fields."""

        def decorate(cls):
            hashed = frozen and options.get("eq", True) and "__hash__" not in vars(cls)
            return dataclasses.dataclass(unsafe_hash=hashed, **options)(cls)

        return decorate


__all__ = ["dataclass"]
