"""Whether svcctl has the version of svc that a cluster has."""

from typing import Final

import svc
from svc.admin.cluster_version import noted_version
from svc.admin.resources import CLUSTER
from svc.datastore.api import Backend, StoreError, UndecodableEntry
from svc.model.errors import CallerError, Code
from svc.model.resource import Resource
from svc.names import Names

_REMEDY: Final = "give --allow-version-mismatch to use svcctl all the same"


def require_same_version(backend: Backend, names: Names) -> None:
    """Raise CallerError if svcctl and the cluster have different versions, StoreError if that cannot be read.

    A cluster without a version passes, and so does one whose information cannot be decoded: `svcctl ipam check` reports it.
    The check is one read."""
    noted = noted_version(names, _read(backend))
    if noted and comparable(noted) != comparable(svc.__version__):  # looking up the own version takes 10 ms
        raise CallerError(
            f"svcctl is of version {svc.__version__}, and the cluster of {noted}",
            details=f"use svcctl of the version of the cluster; or {_REMEDY}",
            code=Code.INCOMPATIBLE_VERSION,
        )


def comparable(version: str) -> str:
    """Return what counts of a version: the text without a leading `v`, up to the first `-`."""
    return version.removeprefix("v").partition("-")[0]


def _read(backend: Backend) -> Resource | None:
    try:
        entry = backend.find(CLUSTER)
    except UndecodableEntry:
        return None
    except StoreError as error:
        if error.lacks_right:  # the command may work without this object
            error.details = f"{error.details}; or {_REMEDY}"
        raise
    return entry.value if entry else None
