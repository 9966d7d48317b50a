"""What a user gives for a procedure."""

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs of a procedure. Each refuses those that it does not use. An empty one is not given.

    `manifest` is a file or URL, `sha256` its digest, `to` a version. `source` and `target` are the network
    configurations that name two datastores."""

    manifest: str = ""
    sha256: str = ""
    to: str = ""
    source: str = ""
    target: str = ""
