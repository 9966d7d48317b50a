"""Dataclasses of svc.values: equality, hashes and slots like frozen ones, and plain assignment of fields."""

import dataclasses

import pytest

from svc.values import dataclass


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
    token: str = dataclasses.field(default="", repr=False)
    uses: int = dataclasses.field(default=0, compare=False)


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
