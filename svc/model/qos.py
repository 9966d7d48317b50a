"""Traffic shaping of a pod: from its annotations to the `qosControls` of its endpoint.

An invalid annotation is reported, and does not fail the ADD: svc takes the nearest bound, or ignores an unreadable value.
"""

import re
from collections.abc import Mapping
from typing import Final

from svc.model.field_errors import display
from svc.names import Names
from svc.values import dataclass

Controls = dict[str, int]

_LONGEST = 64  # characters of a quantity
_QUANTITY: Final = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?", re.ASCII)
_TENS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_TWOS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

# Code points by name: RFC 2474 (class selectors), 2597 (assured), 3246 (expedited), 5865 (voice admit).
_CODE_POINTS: Final = {
    "DF": 0, "EF": 46, "VA": 44,
    **{f"CS{number}": 8 * number for number in range(8)},
    **{f"AF{queue}{drop}": 8 * queue + 2 * drop for queue in range(1, 5) for drop in range(1, 4)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Limit:
    """A control of one direction: its range, and the control that it requires."""

    name: str
    low: int
    high: int
    needs: str = ""
    default: int = 0  # used if the required control is given and this one is not
    exceeds_need: bool = False


_RATES: Final = (
    _Limit("Bandwidth", 1000, 10**15),
    _Limit("Burst", 1000, 34359738360, needs="Bandwidth", default=1 << 32),
    _Limit("Peakrate", 1010, 1010 * 10**12, needs="Bandwidth", exceeds_need=True),
    _Limit("Minburst", 1000, 10**8, needs="Peakrate"),
)
_PACKETS: Final = (_Limit("PacketRate", 1, 10_000), _Limit("PacketBurst", 1, 10_000, needs="PacketRate", default=5))
_CONNECTIONS: Final = (_Limit("MaxConnections", 1, (1 << 32) - 1),)


def controls_of(names: Names, notes: Mapping[str, str]) -> tuple[Controls, list[str]]:
    """Return the controls from a pod's annotations, in the order in which they are stored, and the problems as text."""
    problems: list[str] = []
    controls: Controls = {}
    given = _given(names, notes)
    if given:
        for group in (_RATES, _PACKETS, _CONNECTIONS):
            for direction in ("ingress", "egress"):
                controls |= _of_direction(direction, group, given, problems)
        if "dscp" in given:
            controls |= _code_point(*given["dscp"], problems)
    return controls, problems


def quantity(text: str) -> int:
    """Parse a Kubernetes quantity (`1M`, `1.5Gi`, `2e6`) and round it up. Raise ValueError."""
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None or not (found[2] or found[3]):
        raise ValueError("is not a quantity")
    sign, whole, fraction, exponent, suffix = (part or "" for part in found.groups())
    number = int(f"{sign}{whole}{fraction}") << _TWOS.get(suffix, 0)
    tens = int(exponent or _TENS.get(suffix, 0)) - len(fraction)
    scale: int = 10 ** abs(tens)
    return number * scale if tens >= 0 else -(-number // scale)


def _given(names: Names, notes: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return annotation and text of each requested control by its name. Annotations of svc override those of Kubernetes."""
    prefix = f"{names.qos_prefix}/"
    found = {}
    for direction in ("ingress", "egress"):
        note = f"{names.orch_domain}/{direction}-bandwidth"
        if note in notes:
            found[f"{direction}Bandwidth"] = (note, notes[note])
    return found | {note.removeprefix(prefix): (note, text) for note, text in notes.items() if note.startswith(prefix)}


def _of_direction(
    direction: str, limits: tuple[_Limit, ...], given: Mapping[str, tuple[str, str]], problems: list[str]
) -> Controls:
    found: Controls = {}
    for limit in limits:
        name = direction + limit.name
        if name in given:
            value = _valid(direction, limit, found, *given[name], problems)
        else:
            value = limit.default if direction + limit.needs in found else 0
        if value:
            found[name] = value
    return found


def _valid(direction: str, limit: _Limit, found: Controls, note: str, text: str, problems: list[str]) -> int:
    """Return the value of a control; 0 if it is ignored."""
    try:
        value = quantity(text)
    except ValueError as error:
        problems.append(f"{note} = {display(text)} {error}: it is left out")
        return 0
    if limit.needs and direction + limit.needs not in found:
        problems.append(f"{note} = {display(text)} means nothing without {direction}{limit.needs}: it is left out")
        return 0
    nearest = min(max(value, limit.low), limit.high)
    if nearest != value:
        problems.append(f"{note} = {display(text)} is out of range, {limit.low} to {limit.high}: {nearest} is taken")
    if limit.exceeds_need and nearest <= found[direction + limit.needs]:
        problems.append(f"{note} = {display(text)} does not exceed {direction}{limit.needs}: it is left out")
        return 0
    return nearest


def _code_point(note: str, text: str, problems: list[str]) -> Controls:
    value = _CODE_POINTS.get(text.upper(), int(text) if text.isascii() and text.isdigit() and len(text) < 3 else -1)
    if 0 <= value < 64:
        return {"dscp": value}
    problems.append(f"{note} = {display(text)} is not a code point: it is left out")
    return {}
