"""Placeholders in a network configuration that is the same for all nodes, such as `__KUBERNETES_NODE_NAME__`."""

import re
from collections.abc import Mapping
from typing import Any, Final

from svc.model.errors import CallerError

Json = dict[str, Any]

VARIABLES: Final = ("KUBERNETES_NODE_NAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "ETCD_ENDPOINTS", "CNI_MTU")
"""Variables of the environment whose values replace their placeholders."""

_TOKEN: Final = re.compile("__([A-Z][A-Z_]*[A-Z])__")


def completed(entry: Json, environment: Mapping[str, str], source: str) -> Json:
    """Return the part of svc in a network list that all nodes share, with the name of the installer's node.

    Raise CallerError for a placeholder without a value."""
    node = environment.get(VARIABLES[0])
    found: Json = with_values(entry, environment, source)
    return {"nodename": node, **found} if node else found


def with_values(value: Any, environment: Mapping[str, str], source: str) -> Any:
    """Return a document with values for the placeholders in its texts. Raise CallerError for one without a value."""
    if isinstance(value, dict):
        return {name: with_values(each, environment, source) for name, each in value.items()}
    if isinstance(value, list):
        return [with_values(each, environment, source) for each in value]
    return _TOKEN.sub(lambda found: _value(found[1], environment, source), value) if isinstance(value, str) else value


def _value(name: str, environment: Mapping[str, str], source: str) -> str:
    if name not in VARIABLES:
        known = ", ".join(f"__{each}__" for each in VARIABLES)
        raise CallerError(f"{source}: placeholder __{name}__ is not known", details=f"write its value, or use one of {known}")
    if not environment.get(name):
        raise CallerError(f"{source}: placeholder __{name}__ has no value", details=f"set the variable {name}")
    return environment[name]
