"""Types of options: what each accepts is checked before anything is built or measured."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a type of whole numbers within bounds."""
    end = "on" if high is None else f"to {high}"
    return _within(int, low, math.inf if high is None else high, f"a whole number from {low} {end}")


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a type of finite numbers within bounds."""
    end = "on" if high == math.inf else f"to {high:g}"
    return _within(float, low, high, f"a number from {low:g} {end}")


def _within(parse: Callable[[str], Number], low: float, high: float, wanted: str) -> Callable[[str], Number]:
    def parsed(text: str) -> Number:
        try:
            value = parse(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if not low <= value <= high or value == math.inf:
            raise ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return parsed
