"""Mutation of inputs: bytes, words of a target's language, and JSON values."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

MAX_BYTES: Final = 1 << 13
_NUMBERS: Final = (0, 1, 2, 7, 15, 16, 31, 32, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64)
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, "", " ", "0", "true", "\0", "\ud800", "é", "a" * 300, "../x", 0.5, 1e308, -1, [], {}, [None], {"": None},
    *_NUMBERS,
)  # fmt: skip
_SPECIAL: Final = b"\0\n\r\t \"'\\/{}[]()<>=:;,.&|!%-_\x7f\x80\xff"

Mutation = Callable[[bytes, Random], bytes]


def mutate(data: bytes, others: Sequence[bytes], words: Sequence[bytes], random: Random) -> bytes:
    """Return the input with a few changes. `others` are inputs to splice with, `words` belong to the target's language."""
    steps: list[Mutation] = [_flip, _special, _delete, _repeat, _number, _json, _json]
    steps += [lambda text, dice: _splice(text, dice.choice(others), dice)] if others else []
    steps += [lambda text, dice: _insert(text, dice.choice(words), dice)] * 2 if words else []
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        data = random.choice(steps)(data, random)[:MAX_BYTES]
    return data


def _insert(data: bytes, part: bytes, random: Random) -> bytes:
    """Insert bytes, or write them over others."""
    start = random.randrange(len(data) + 1)
    return data[:start] + part + data[start + random.choice((0, len(part))) :]


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return bytes([random.randrange(256)])
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _special(data: bytes, random: Random) -> bytes:
    return _insert(data, bytes([random.choice(_SPECIAL)]), random)


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 4, 16, 256)))


def _delete(data: bytes, random: Random) -> bytes:
    start, end = _span(data, random)
    return data[:start] + data[end:]


def _repeat(data: bytes, random: Random) -> bytes:
    start, end = _span(data, random)
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


def _splice(data: bytes, other: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _number(data: bytes, random: Random) -> bytes:
    """Write a number: as text, or in two, four or eight bytes."""
    number, size = random.choice(_NUMBERS), random.choice((0, 2, 4, 8))
    part = (number % 256**size).to_bytes(size, random.choice(("little", "big"))) if size else str(number).encode()
    return _insert(data, part, random)


def _json(data: bytes, random: Random) -> bytes:
    """Change one value of a JSON document, or leave it as it is if it is not JSON."""
    try:
        document = json.loads(data)
        changed = _changed(document, random, depth=0)
        return json.dumps(changed, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data


def _changed(value: Any, random: Random, depth: int) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.85:
        return _changed_object(value, random, depth)
    if isinstance(value, list) and value and random.random() < 0.85:
        return _changed_list(value, random, depth)
    wrapped: tuple[Any, ...] = ([value], {"x": value}, str(value))
    return random.choice((*_VALUES, *wrapped))


def _changed_object(value: dict[str, Any], random: Random, depth: int) -> dict[str, Any]:
    name = random.choice(list(value))
    match random.randrange(6):
        case 0:
            return {key: item for key, item in value.items() if key != name}
        case 1:
            return {**value, random.choice(list(value)): value[name]}
        case 2:
            return {**value, random.choice((name + "x", name.upper(), "", name[:-1])): value[name]}
    return {**value, name: _changed(value[name], random, depth + 1)}


def _changed_list(value: list[Any], random: Random, depth: int) -> list[Any]:
    place = random.randrange(len(value))
    match random.randrange(5):
        case 0:
            return value[:place] + value[place + 1 :]
        case 1:
            return [*value, value[place]]
        case 2:
            return [*value[:place], random.choice(_VALUES), *value[place:]]
    return [*value[:place], _changed(value[place], random, depth + 1), *value[place + 1 :]]
