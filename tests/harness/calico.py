"""Calico: its names profile, and the resources that it wrote into an API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

CALICO_NAMES = load_profile("calico")
_FIXTURES = Path(__file__).parents[1] / "unit" / "fixtures"
_SERVERS = ("creationTimestamp", "generation", "resourceVersion", "uid")


def captured(state: str = "orch-*") -> Iterator[Json]:
    """Yield every captured custom resource."""
    return (item for item in _items(state) if item["kind"] != "Pod")


def captured_pod(state: str) -> Json:
    return next(item for item in _items(state) if item["kind"] == "Pod")


def without_server_metadata(data: Json) -> Json:
    """Return the object without the metadata that a server adds."""
    return data | {"metadata": {name: item for name, item in data["metadata"].items() if name not in _SERVERS}}


def _items(state: str) -> Iterator[Json]:
    for file in sorted(_FIXTURES.glob(f"{state}.jsonl")):
        yield from map(json.loads, file.read_text().splitlines()[1:])
