"""The host endpoints that the controllers create: their names and their label."""

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Final

from svc.model.resource import MAX_NAME, Resource, name_error
from svc.names import Names

KIND: Final = "HostEndpoint"
ALL_INTERFACES: Final = "*"
"""The interface of a host endpoint for all interfaces of its node."""
_SUFFIX: Final = "auto-hep"


def owner_label(names: Names) -> str:
    """Return the label of the program that has created a host endpoint."""
    return f"{names.label_prefix}/created-by"


def is_automatic(names: Names, endpoint: Resource) -> bool:
    """Return whether the label says that the controllers have created the host endpoint."""
    return endpoint.labels.get(owner_label(names)) == names.controllers


def endpoint_name(parts: Iterable[str]) -> str:
    """Return the name of a host endpoint: its parts and a suffix. Put a hash in place of parts that make no valid name."""
    name = "-".join(part for part in (*parts, _SUFFIX) if part)
    if len(name) <= MAX_NAME and not name_error(Resource(KIND, {"name": name})):
        return name
    digest = base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()).decode()
    return f"{re.sub('[-_=]', '', digest).lower()}-{_SUFFIX}"
