"""The versions of the parts of svc: svcctl, the cluster and the agent of this node."""

from collections.abc import Callable
from typing import Any, Final

import svc
from svc.admin.build_commit import build_commit
from svc.admin.cluster_version import noted_version
from svc.admin.resources import get_cluster_information
from svc.admin.sources import Source, read_all
from svc.datastore.api import Backend
from svc.model.errors import SvcError
from svc.names import Names

SECONDS: Final = 3.0  # that datastore and agent have to answer

Json = dict[str, Any]

_NO_CLUSTER: Final[Json] = {"version": None, "types": [], "svcVersion": None}
_NO_AGENT: Final[Json] = {"version": None}


def client_version() -> Json:
    """Return version and commit of svcctl. The commit is None if the build did not know it."""
    return {"version": svc.__version__, "commit": build_commit() or None}


def cluster_version(backend: Backend, names: Names) -> Json:
    """Return version and types of a cluster, and the version of svc there. Raise CallerError, StoreError.

    They differ if the definitions belong to another product, because the version is then that of the product."""
    info = get_cluster_information(backend)
    return {
        "version": str(info.spec.get(names.version_field) or "").strip() or None,
        "types": [each for each in str(info.spec.get("clusterType") or "").split(",") if each],
        "svcVersion": noted_version(names, info) or None,
    }


class Versions:
    """The versions of datastore and agent. Each is read by a thread, so that one that does not answer delays no other.

    `cluster` and `agent` return a part of the document, or None if this machine has none. `load` loads the packages of the
    datastore.
    """

    def __init__(self, cluster: Callable[[], Json | None], agent: Callable[[], Json | None], load: Callable[[], None]) -> None:
        self._cluster = Source("the datastore", cluster, load)
        self._agent = Source("the agent", agent)

    @property
    def failures(self) -> list[SvcError]:
        """The failures of the last attempt."""
        return [each.failure for each in (self._cluster, self._agent) if each.failure]

    @property
    def is_complete(self) -> bool:
        """Whether no source is still being read."""
        return not (self._cluster.is_running or self._agent.is_running)

    def read(self) -> Json:
        """Return the document of all versions."""
        read_all((self._cluster, self._agent), SECONDS)
        cluster, agent = _part(self._cluster, _NO_CLUSTER), _part(self._agent, _NO_AGENT)
        return {"client": client_version(), "cluster": cluster, "agent": agent}


def _part(source: Source, unknown: Json) -> Json | None:
    if source.failure is None:
        return source.value and {**source.value, "error": None}
    return {**unknown, "error": {"message": source.failure.msg, "details": source.failure.details}}
