"""Immutable dataclasses without the run-time cost of `frozen=True`, and with a cheaper definition.

mypy refuses an assignment to a field of a `frozen=True` class. Python would refuse it too, but then sets the fields of a new
object more slowly: 0.5 us for three fields, instead of 0.15 us. An ADD and its DEL create a hundred such objects. So the fields
of these classes are plain slots at run time. Equality and hash are those of a frozen dataclass.

The decorator of `dataclasses` compiles each method of each class when the class is defined, and its module imports a dozen
others. A process that carries out one call defines a hundred classes and uses half of them: this took half of its start. So
methods are compiled when they are first used. The functions of `dataclasses` work with these classes as well. Keyword-only
fields, `InitVar` and methods of order are not supported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
else:
    from svc.light_dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace

__all__ = ["MISSING", "Field", "asdict", "dataclass", "field", "fields", "replace"]
