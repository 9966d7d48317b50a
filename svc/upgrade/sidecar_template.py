"""The template by which a service mesh adds sidecars to pods: the ConfigMap with it, and what it says."""

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from svc.model.errors import CallerError

Json = dict[str, Any]

CONFIG, VALUES = "config", "values"
"""Entries of the ConfigMap: the template, and the settings of the mesh as JSON."""

MESH_VERSIONS: Final = ("1.1", "1.2", "1.3", "1.4.0", "1.4.1", "1.4.2", "1.6", "1.7", "1.9", "1.10", "1.15")
"""Releases of the mesh for which templates exist. Two numbers stand for all patch releases."""


def template_of(documents: Sequence[Json]) -> str:
    """Return the template of a file, which may have no more than `data.config`. Raise CallerError."""
    found = [str((each.get("data") or {}).get(CONFIG) or "") for each in documents]
    if len(found) != 1 or not found[0]:
        raise CallerError("the manifest is not one object with data.config", details="give the template for your mesh")
    return found[0]


def image_of(template: str, sidecar: str) -> str:
    """Return the image of a container in a template; empty if it has none. Lines that are directives do not count."""
    lines = [line for line in template.splitlines() if line.strip() and not line.lstrip().startswith("{{")]
    wanted = re.compile(rf"[ -]*name:\s*[\"']?{re.escape(sidecar)}[\"']?\s*(#.*)?")
    for number, line in enumerate(lines):
        if wanted.fullmatch(line) and (image := _image_beside(lines, number)):
            return image
    return ""


def mesh_version(config: Json) -> str:
    """Return the version that the settings of a mesh name; empty if they name none."""
    try:
        values = yaml.safe_load(str((config.get("data") or {}).get(VALUES) or ""))
        return str(values["global"]["tag"])
    except (yaml.YAMLError, KeyError, TypeError):
        return ""


def is_known(version: str) -> bool:
    """Return whether templates for a version of the mesh exist."""
    return any(f"{version.partition('-')[0]}.".startswith(f"{known}.") for known in MESH_VERSIONS)


def _image_beside(lines: Sequence[str], number: int) -> str:
    """Return the image in the item of a list that has a line."""
    column = _column(lines[number])
    first = next((at for at in range(number, -1, -1) if _begins(lines[at], column)), number)
    for at in range(first, len(lines)):
        line = lines[at]
        if at > first and (_begins(line, column) or _column(line) < column):
            return ""
        if found := re.fullmatch(r"[ -]*image:\s*[\"']?([^\s\"'#]+)[\"']?\s*(#.*)?", line):
            return found[1] if _column(line) == column else ""
    return ""


def _column(line: str) -> int:
    """Return where the first key of a line stands, behind the dash of an item."""
    return len(line) - len(line.lstrip(" -"))


def _begins(line: str, column: int) -> bool:
    return line.lstrip().startswith("- ") and _column(line) == column
