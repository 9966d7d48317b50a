"""Dataclasses of svc.values: equality, hashes and slots like frozen ones, and plain assignment of fields."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import svc
from svc.values import asdict, dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class ByName:
    name: str
    text: str = ""

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Itself:
    x: int


@dataclass(slots=True)
class Changing:
    x: int


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    token: str = field(default="", repr=False)
    uses: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = ""


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True, repr=False)
class Unshown:
    token: str


def test_representation_shows_no_hidden_field() -> None:
    assert repr(Account("a", "secret", 2)) == "Account(name='a', uses=2)"
    assert "secret" not in repr(Unshown("secret"))


def test_fields_that_are_not_compared_do_not_count() -> None:
    assert Account("a", "t", 1) == Account("a", "t", 2) != Account("a", "u", 1)
    assert hash(Account("a", "t", 1)) == hash(Account("a", "t", 2))


def test_object_of_another_class_differs() -> None:
    assert Point(1, 2) != Named(1, 2)
    assert Named(1, 2, "a") == Named(1, 2, "a") != Named(1, 2, "b")
    assert len({Named(1, 2, "a"), Named(1, 2, "a"), Point(1, 2)}) == 2
    values: object = (1, 0)
    assert Point(1) != values


def test_objects_without_fields_are_equal() -> None:
    assert len({Empty(), Empty()}) == 1


def test_equal_values_have_equal_hashes() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert len({Point(1), Point(1, 0), Point(1, 2)}) == 2


def test_hash_method_of_the_class_is_kept() -> None:
    assert hash(ByName("a", "b")) == hash("a")
    assert ByName("a", "b") != ByName("a")


def test_objects_without_equality_differ() -> None:
    assert len({Itself(1), Itself(1)}) == 2


def test_mutable_value_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing(1))


def test_fields_are_slots_and_are_set_directly() -> None:
    assert not hasattr(Point(1), "__dict__")
    assert Point.__setattr__ is object.__setattr__
    assert dataclasses.replace(Point(1), y=2) == Point(1, 2)
    assert replace(Point(1), y=2) == Point(1, 2)


@dataclass(slots=True)
class Every:
    """A class with every kind of field that svc uses."""

    kind: ClassVar[str] = "every"
    first: int
    items: list[int] = field(default_factory=list)
    second: str = "b"
    hidden: int = field(default=7, init=False, repr=False, compare=False)
    made: dict[str, int] = field(default_factory=dict, init=False)
    late: int = field(default=3, kw_only=True)
    ended: bool = False

    def __post_init__(self) -> None:
        self.ended = True


@dataclasses.dataclass(slots=True)
class Twin:
    """The same class, of `dataclasses`."""

    kind: ClassVar[str] = "every"
    first: int
    items: list[int] = dataclasses.field(default_factory=list)
    second: str = "b"
    hidden: int = dataclasses.field(default=7, init=False, repr=False, compare=False)
    made: dict[str, int] = dataclasses.field(default_factory=dict, init=False)
    late: int = dataclasses.field(default=3, kw_only=True)
    ended: bool = False

    def __post_init__(self) -> None:
        self.ended = True


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, [2]), {}),
    ((1, [2], "c"), {"late": 4}),
    ((), {"first": 5, "second": "d"}),
    ((), {}),
    ((1, [], "b", 4, 5), {}),
    ((1,), {"first": 2}),
    ((1,), {"hidden": 2}),
    ((1,), {"unknown": 2}),
]


def _outcome(cls: type, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    try:
        return repr(cls(*arguments, **named))
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize(("arguments", "named"), CALLS)
def test_objects_are_made_as_those_of_dataclasses(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert _outcome(Every, arguments, named) == _outcome(Twin, arguments, named).replace("Twin", "Every")


def test_functions_work_as_those_of_dataclasses() -> None:
    made, twin = Every(1, [2], "c", late=4), Twin(1, [2], "c", late=4)
    assert asdict(made) == dataclasses.asdict(made) == dataclasses.asdict(twin)
    assert [each.name for each in fields(made)] == [each.name for each in dataclasses.fields(made)]
    assert Every.__match_args__ == Twin.__match_args__
    assert replace(made, second="e") == dataclasses.replace(made, second="e") == Every(**{**_given(made), "second": "e"})


def _given(value: Every) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value) if each.init}


def test_each_object_has_its_own_default() -> None:
    first, second = Every(1), Every(1)
    first.items.append(1)
    first.made["a"] = 1
    assert (second.items, second.made) == ([], {})


def test_nested_values_become_dictionaries() -> None:
    @dataclass(slots=True)
    class Outer:
        points: tuple[Point, ...]
        names: dict[str, Point]

    value = Outer((Point(1),), {"a": Point(2, 3)})
    assert asdict(value) == dataclasses.asdict(value) == {"points": ({"x": 1, "y": 0},), "names": {"a": {"x": 2, "y": 3}}}


def test_field_of_dataclasses_is_refused() -> None:
    with pytest.raises(TypeError, match=r"x: describe the field by svc\.values\.field"):

        @dataclass(slots=True)
        class _Wrong:
            x: int = dataclasses.field(default=1)


def test_value_without_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="has no fields"):
        fields(3)  # type: ignore[arg-type]


def _classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(svc.__path__, "svc."):
        if not module.name.endswith("__main__"):
            found = vars(importlib.import_module(module.name)).values()
            yield from (each for each in found if isinstance(each, type) and each.__module__ == module.name)


def test_methods_of_every_class_can_be_compiled() -> None:
    """They are compiled at their first use, which may be in a rare case."""
    found = 0
    for cls in _classes():
        if type(vars(cls).get("__dataclass_fields__")) is dict and "__dataclass_params__" not in vars(cls):
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                cls(**{"not a field": 1})
            found += 1
    assert found > 250
