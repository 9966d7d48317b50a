"""Metrics in the Prometheus text format 0.0.4. Imported only when metrics are served."""

from typing import Final

from svc.agent.metric_families import BY_SAMPLE, FAMILIES
from svc.metrics import Labels, Metrics

_MAX_KNOWN: Final = 4096  # formatted names; pools come and go
_HEADS: Final = {
    family.name: f"# HELP {family.full_name} {family.help}\n# TYPE {family.full_name} {family.type}\n" for family in FAMILIES
}
_FAMILY_OF: Final = {sample: family.name for sample, family in BY_SAMPLE.items()}
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_names: dict[tuple[str, Labels], str] = {}


def exposition(metrics: Metrics) -> str:
    """Return the metrics as text. A counter with labels has no sample before its first event."""
    lines = {name: [head] for name, head in _HEADS.items()}
    for key, value in metrics.read().items():
        lines[_FAMILY_OF[key[0]]].append(f"{_formatted(key)} {value!r}\n")
    return "".join([line for found in lines.values() for line in found])


def _formatted(key: tuple[str, Labels]) -> str:
    """Return the name with its labels. It is kept, because a scrape needs it again."""
    known = _names.get(key)
    if known is None:
        if len(_names) >= _MAX_KNOWN:
            _names.clear()
        name, labels = key
        family = BY_SAMPLE[name]
        inside = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in labels)
        known = family.full_name + name.removeprefix(family.name) + (f"{{{inside}}}" if inside else "")
        _names[key] = known
    return known
