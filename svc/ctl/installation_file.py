"""The file with an Installation, as commands read it."""

from typing import Any

from svc.admin.installation_resource import rules
from svc.admin.operator_resource import read_checked
from svc.ctl.terminal import echo
from svc.names import Names

Json = dict[str, Any]


def read_installation(data: bytes, source: str, names: Names) -> Json:
    """Return the resource, and name on stderr the fields that svc does not read. Raise CallerError with every error."""
    document = read_checked(data, source, names)
    for path in rules.unread(document["spec"], names):
        echo(f"warning: svc does not read spec.{path}", err=True)
    return document
