"""Types of options: what each accepts is checked before anything is built or measured."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a type of whole numbers within bounds."""
    wanted = f"a whole number from {low} {'on' if high is None else f'to {high}'}"

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if value < low or (high is not None and value > high):
            raise ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return parsed


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a type of finite numbers within bounds."""
    wanted = f"a number from {low:g} {'on' if high == math.inf else f'to {high:g}'}"

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if not (math.isfinite(value) and low <= value <= high):
            raise ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return parsed
