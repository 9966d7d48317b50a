"""What a user gives for a procedure."""

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs of a procedure. Each refuses those that it does not use. An empty one is not given.

    `manifest` is a file or URL, `sha256` its digest, `to` a version. `chart` is a folder or an archive, `values` a file;
    with `external_install` the user runs helm."""

    manifest: str = ""
    sha256: str = ""
    to: str = ""
    chart: str = ""
    release: str = ""
    values: str = ""
    external_install: bool = False
