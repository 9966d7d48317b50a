# mypy: ignore-errors
"""The part of `dataclasses` that svc uses, without its imports and with methods that are compiled at their first use.

Modules import it as `svc.values`, where a type checker sees `dataclasses`.
"""

import sys
from typing import ClassVar

MISSING = object()
_FIELDS = "__dataclass_fields__"  # where orjson, and the functions of `dataclasses`, look for them


class Field:
    """A field: its name, default or factory of defaults, and whether `__init__`, `__repr__` and `__eq__` use it."""

    __slots__ = ("compare", "default", "default_factory", "init", "kw_only", "name", "repr")

    def __init__(self, name, default, default_factory, *, init=True, shown=True, compare=True, kw_only=False):
        self.name = name
        self.default = default
        self.default_factory = default_factory
        self.init = init
        self.repr = shown
        self.compare = compare
        self.kw_only = kw_only

    @property
    def _field_type(self):
        """Return the mark that `dataclasses` and orjson compare."""
        import dataclasses

        return dataclasses._FIELD


def field(
    *,
    default=MISSING,
    default_factory=MISSING,
    init=True,
    repr=True,  # noqa: A002 the name in `dataclasses`
    compare=True,
    kw_only=False,
):
    """Describe a field that has more than a default."""
    return Field("", default, default_factory, init=init, shown=repr, compare=compare, kw_only=kw_only)


def dataclass(*, frozen=False, eq=True, repr=True, slots=False):  # noqa: A002 the names of dataclasses
    """Return the decorator. `frozen` gives objects a hash and concerns the type checker."""

    def decorate(cls):
        own = vars(cls)
        listed = _listed(cls)
        added = {
            _FIELDS: listed,
            "__match_args__": tuple([each.name for each in listed.values() if each.init and not each.kw_only]),
            "__init__": _compiled_on_use("__init__", _init_of),
        }
        if repr and "__repr__" not in own:
            added["__repr__"] = _represent
        if eq and "__eq__" not in own:
            added["__eq__"] = _compiled_on_use("__eq__", _eq_of)
        if eq and own.get("__hash__") is None:
            added["__hash__"] = _compiled_on_use("__hash__", _hash_of) if frozen else None
        return _with_slots(cls, listed, added) if slots else _with_defaults(cls, listed, added)

    return decorate


def fields(value):
    """Return the fields of a class or of an object of it."""
    return tuple(_fields_of(value).values())


def replace(value, /, **changes):
    """Return a copy with other values in some fields."""
    for each in _fields_of(value).values():
        if each.init and each.name not in changes:
            changes[each.name] = getattr(value, each.name)
    return value.__class__(**changes)


def asdict(value):
    """Return the fields as a dictionary; lists, tuples and dictionaries are copied, objects of dataclasses become such too."""
    if hasattr(type(value), _FIELDS):
        return {name: asdict(getattr(value, name)) for name in _fields_of(value)}
    if isinstance(value, (list, tuple)):
        return type(value)(asdict(each) for each in value)
    if isinstance(value, dict):
        return {asdict(key): asdict(each) for key, each in value.items()}
    return value


def _fields_of(value):
    found = getattr(value, _FIELDS, None)
    if found is None:
        raise TypeError(f"{value!r} has no fields")
    return found


def _annotations(cls):
    if sys.version_info < (3, 14):
        return cls.__annotations__  # those of the class itself
    import annotationlib

    return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)


def _listed(cls):
    """Return the fields by name, those of base classes first."""
    listed = {}
    for base in reversed(cls.__mro__[1:-1]):
        listed.update(vars(base).get(_FIELDS, ()))
    own = vars(cls)
    for name, annotation in _annotations(cls).items():
        if annotation is ClassVar or getattr(annotation, "__origin__", None) is ClassVar:
            continue
        default = own.get(name, MISSING)
        if type(default).__module__ == "dataclasses":
            raise TypeError(f"{cls.__qualname__}.{name}: describe the field by svc.values.field")
        if isinstance(default, Field):
            default.name = name
            listed[name] = default
        else:
            listed[name] = Field(name, default, MISSING)
    return listed


def _with_defaults(cls, listed, added):
    for name, value in added.items():
        setattr(cls, name, value)
    for name, each in listed.items():
        if isinstance(vars(cls).get(name), Field):
            if each.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, each.default)
    return cls


def _with_slots(cls, listed, added):
    """Return the class with a slot for each field, instead of a dictionary for each object.

    It is made with all its attributes, because Python looks through all methods when one is added to a class.
    """
    inherited = {name for base in cls.__mro__[1:-1] for name in vars(base).get("__slots__", ())}
    content = {name: each for name, each in vars(cls).items() if name not in listed}
    content.pop("__dict__", None)
    content.pop("__weakref__", None)
    content |= added
    content["__slots__"] = tuple(name for name in listed if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, content)
    made.__qualname__ = cls.__qualname__
    return made


def _compiled_on_use(name, define):
    """Return a method that replaces itself by the compiled one and calls it."""

    def method(self, *arguments, **named):
        cls = next(each for each in type(self).__mro__ if vars(each).get(name) is method)
        compiled = define(vars(cls)[_FIELDS].values(), cls)
        compiled.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, compiled)
        return compiled(self, *arguments, **named)

    return method


def _init_of(listed, cls):
    names, named, lines, values = ["self"], [], [], {"MISSING": MISSING}
    for each in listed:
        name = source = each.name
        values[f"default_{name}"] = each.default
        if each.default_factory is not MISSING:
            values[f"make_{name}"] = each.default_factory
            source = f"make_{name}() if {name} is MISSING else {name}" if each.init else f"make_{name}()"
        if each.init:
            has_default = each.default is not MISSING or each.default_factory is not MISSING
            (named if each.kw_only else names).append(f"{name}=default_{name}" if has_default else name)
        elif each.default is not MISSING:
            source = f"default_{name}"
        elif each.default_factory is MISSING:
            continue
        lines.append(f"self.{name} = {source}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    names += ["*", *named] if named else []
    exec(f"def __init__({', '.join(names)}):\n " + "\n ".join(lines or ["pass"]), values)  # noqa: S102 of names of fields
    return values["__init__"]


def _eq_of(listed, _):
    mine, others = (_tuple(owner, listed) for owner in ("self", "other"))
    return eval(f"lambda self, other: {mine} == {others} if other.__class__ is self.__class__ else NotImplemented", {})  # noqa: S307


def _hash_of(listed, _):
    return eval(f"lambda self: hash({_tuple('self', listed)})", {})  # noqa: S307 of names of fields


def _tuple(owner, listed):
    return f"({''.join(f'{owner}.{each.name}, ' for each in listed if each.compare)})"


def _represent(self):
    shown = [each.name for each in _fields_of(self).values() if each.repr]
    return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"
