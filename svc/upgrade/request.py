"""What a user gives for a procedure."""

from svc.model.errors import CallerError
from svc.values import dataclass, fields


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs of a procedure. An empty one is not given.

    `manifest` is a file or URL, `sha256` its digest; `base` and `base_sha256` are those of the former manifest. `to` is a
    version, `policies` a file. `source` and `target` are the network configurations that name two datastores. `chart` is a
    folder or an archive, `values` a file; with `external_install` the user runs helm."""

    manifest: str = ""
    sha256: str = ""
    base: str = ""
    base_sha256: str = ""
    to: str = ""
    policies: str = ""
    source: str = ""
    target: str = ""
    chart: str = ""
    release: str = ""
    values: str = ""
    external_install: bool = False

    def require_only(self, procedure: str, *used: str) -> None:
        """Raise CallerError, with the options, if more than the used inputs is given."""
        given = [each.name for each in fields(self) if getattr(self, each.name) and each.name not in used]
        if given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise CallerError(f"--procedure {procedure} takes no {options}", details="leave it out, or give another procedure")
