"""Dataclasses whose fields nobody assigns, without what Python charges for it.

mypy refuses an assignment to a field of a class that says `frozen=True`. Python would refuse it, too, and would set each field
of a new object in a slow way for that: 0.5 us for three fields, against 0.15 us. An ADD and its DEL make a hundred such
objects. So the fields of these classes are plain slots at run time; equality and hash are those of a frozen dataclass.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen=False, **options):
        """As `dataclasses.dataclass`."""

        def decorate(cls):
            hashed = frozen and options.get("eq", True) and "__hash__" not in vars(cls)
            return dataclasses.dataclass(unsafe_hash=hashed, **options)(cls)

        return decorate


__all__ = ["dataclass"]
