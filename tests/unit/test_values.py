"""Dataclasses of svc.values: equality, hashes and slots like frozen ones, and plain assignment of fields."""

import copy
import dataclasses
import importlib
import pickle
import pkgutil
import pprint
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_long_lists_are_printed() -> None:
    """As pytest does if two of them differ."""
    values = [ByName("a" * 90), ByName("b" * 90)]
    assert pprint.pformat(values) == f"[{values[0]!r},\n {values[1]!r}]"


def test_values_are_copied_and_pickled() -> None:
    made = Every(1, [2], "c", late=4)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert (other.hidden, other.ended) == (7, True)


def test_method_that_was_read_before_its_first_use_can_be_called_again() -> None:
    """As by a thread that calls it while another one replaces it."""

    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int

    initialise, equals, digest = Fresh.__init__, Fresh.__eq__, Fresh.__hash__
    first, second = Fresh.__new__(Fresh), Fresh.__new__(Fresh)
    for made in (first, second):
        initialise(made, 1)
    assert equals(first, second)
    assert equals(first, Fresh(1))
    assert digest(first) == digest(second)


def test_threads_use_a_class_for_the_first_time() -> None:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(100):
                assert set(threads.map(_first_use, [_fresh()] * 4)) == {True}
    finally:
        sys.setswitchinterval(before)


def _fresh() -> type[Any]:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: str = ""
        z: str = ""

    return Fresh


def _first_use(cls: type[Any]) -> bool:
    first, second = cls(1), cls(1)
    return bool(first == second) and hash(first) == hash(second)


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


def test_method_that_another_thread_has_compiled_can_be_called() -> None:
    """A thread has found the method, but another one was faster."""

    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int

    begin, compare = Fresh.__init__, Fresh.__eq__
    assert Fresh(1) == Fresh(1)
    begun = Fresh(2)
    begin(begun, 3)
    assert compare(begun, Fresh(3))


def test_methods_of_every_class_can_be_compiled() -> None:
    """They are compiled at their first use, which may be in a rare case."""
    found = 0
    for cls in _classes():
        if "__dataclass_fields__" in vars(cls):
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                cls(**{"not a field": 1})
            found += 1
    assert found > 250
