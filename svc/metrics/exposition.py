"""Metrics in the Prometheus text format 0.0.4. Imported only when metrics are served."""

from collections.abc import Mapping, Sequence
from typing import Final

from svc.metrics import Labels
from svc.metrics.families import Family, by_sample

_MAX_KNOWN: Final = 4096  # formatted names; pools come and go
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """Writes the samples of these families as text."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._heads = {
            family.name: f"# HELP {family.full_name} {family.help}\n# TYPE {family.full_name} {family.type}\n"
            for family in families
        }
        self._by_sample = by_sample(families)
        self._names: dict[tuple[str, Labels], str] = {}

    def text(self, samples: Mapping[tuple[str, Labels], float]) -> str:
        """Return the samples as text. Raise KeyError if one belongs to no family."""
        lines = {name: [head] for name, head in self._heads.items()}
        for key, value in samples.items():
            lines[self._by_sample[key[0]].name].append(f"{self._formatted(key)} {value!r}\n")
        return "".join([line for found in lines.values() for line in found])

    def _formatted(self, key: tuple[str, Labels]) -> str:
        """Return the name with its labels. It is kept, because a scrape needs it again."""
        known = self._names.get(key)
        if known is None:
            if len(self._names) >= _MAX_KNOWN:
                self._names.clear()
            name, labels = key
            family = self._by_sample[name]
            inside = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in labels)
            known = family.full_name + name.removeprefix(family.name) + (f"{{{inside}}}" if inside else "")
            self._names[key] = known
        return known
