"""YAML of objects as people read and edit it: texts of several lines stay lines."""

from collections.abc import Sequence
from typing import Any

import yaml

Json = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Write texts of several lines as blocks, and lists indented below their name."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  # the signature of PyYAML
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Sequence[Json]) -> str:
    """Return documents as YAML, each with its opening line if there are several."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, explicit_start=len(documents) > 1, width=128)
