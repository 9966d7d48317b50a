"""Immutable dataclasses without the run-time cost of `frozen=True`, and with a cheaper definition.

mypy refuses an assignment to a field of a `frozen=True` class. Python would refuse it too, but then sets the fields of a new
object more slowly: 0.5 us for three fields, instead of 0.15 us. An ADD and its DEL create a hundred such objects. So the fields
of these classes are plain slots at run time. Equality and hash are those of a frozen dataclass.

The decorator of `dataclasses` compiles each method of each class when the class is defined. A process that carries out one call
defines a hundred classes and compares objects of few: this took a third of its start. So equality and hash are compiled when
they are first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen=False, eq=True, **options):
        """Return the decorator of `dataclasses.dataclass`, with a hash instead of frozen fields."""

        is_shown = options.pop("repr", True)

        def decorate(cls):
            own = vars(cls)
            made = dataclasses.dataclass(eq=False, repr=False, **options)(cls)
            if is_shown and "__repr__" not in own:
                made.__repr__ = _representation([field.name for field in dataclasses.fields(made) if field.repr])
            if eq:
                _define_equality(made, own, has_hash=frozen)
            return made

        return decorate

    def _representation(names):
        def represent(self):
            return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return represent

    def _define_equality(made, own, *, has_hash):
        """Compare objects of the class by their fields. `own` are the attributes that the class defines itself."""
        names = [field.name for field in dataclasses.fields(made) if field.compare]
        mine, others = (f"({''.join(f'{owner}.{name}, ' for name in names)})" for owner in ("self", "other"))
        if "__eq__" not in own:
            same = f"{mine} == {others} if other.__class__ is self.__class__ else NotImplemented"
            made.__eq__ = _compiled_on_use(made, "__eq__", f"lambda self, other: {same}")
        if own.get("__hash__") is None:
            made.__hash__ = _compiled_on_use(made, "__hash__", f"lambda self: hash({mine})") if has_hash else None

    def _compiled_on_use(made, name, source):
        """Return a method that replaces itself by the compiled source and calls it."""

        def method(*operands):
            compiled = eval(source, {})  # noqa: S307 - of the names of fields
            setattr(made, name, compiled)
            return compiled(*operands)

        return method


__all__ = ["dataclass"]
