"""The controller `operator`: pools, network list and environments are those of the Installation, and its status says so.

The functions that do this are those of svcctl. An error that only an administrator can correct is reported as the condition
Degraded, and nothing is changed. A deleted Installation leaves everything as it is: each write is preceded by a look for it.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

from svc import deadline
from svc._core.cidr import Cidr
from svc.admin.installation_resource import reconcile, workloads
from svc.admin.installation_resource.reconcile import Cluster
from svc.admin.installation_resource.status import Findings
from svc.admin.installation_resource.wanted import DAEMON_SET, DEPLOYMENT, NAMESPACE
from svc.admin.pools import cidr_of
from svc.attach.datastore_ready import DatastoreReadiness
from svc.controllers.controller import Controller, Shared, Unsettled
from svc.controllers.operator.requiring_store import RequiringStore
from svc.controllers.settings import NODE, OPERATOR
from svc.controllers.table import ApiTable
from svc.datastore.api import Backend
from svc.model.errors import CallerError, Code
from svc.model.installation import KIND, NAME, PLURAL
from svc.names import Names

Json = dict[str, Any]
Row = tuple[object, ...]

_REASONS = {Code.POOL: "PoolConflict", Code.INVALID_NETCONF: "InvalidResource"}

log = logging.getLogger("svc.controllers")


class _Gone(Exception):
    """The end of a round whose Installation was deleted in the middle."""


class InstallationController(Controller[str]):
    """The controller. Its only item is the name of the Installation."""

    name = OPERATOR

    def __init__(self, shared: Shared, datastore: Mapping[str, str], namespace: str = NAMESPACE) -> None:
        names, client = shared.names, shared.client
        self._readiness = DatastoreReadiness(shared.store)
        store = cast("Backend", RequiringStore(shared.store, self._require_installation))
        self._cluster = Cluster(client, store, dict(datastore), names, self._writing, namespace)
        self._uid = ""  # of the Installation of the present round
        self._waiting: tuple[Cidr, ...] = ()  # ranges of pools that are deleted when their addresses are released
        path = f"/apis/{names.operator_api_version}/{PLURAL}"
        installations: ApiTable[str, Row] = ApiTable(client, path, _read_installation, shared.fail)
        of_workloads: list[ApiTable[str, Row]] = [
            ApiTable(client, workloads.path_of(kind, namespace=each), partial(_read_workload, kind, names), shared.fail)
            for each in dict.fromkeys((NAMESPACE, namespace))
            for kind in (DAEMON_SET, DEPLOYMENT)
        ]
        self._pools, self._blocks = shared.tables.pools, shared.tables.blocks
        super().__init__(shared, (installations, *of_workloads, self._pools, self._blocks))
        for table in (installations, *of_workloads):
            shared.tables.keep(table)
            table.on_change(self._add)
        self._pools.on_change(self._add)
        self._blocks.on_change(self._look_for_released)

    @property
    def round_seconds(self) -> float:
        """The seconds between full rounds: those of the controller `node`, because this one has no section of its own."""
        return self.shared.live.now.round_seconds(NODE)

    def round_items(self) -> Iterable[str]:
        return (NAME,)

    def shown(self, item: str) -> str:
        return f"{KIND} {item!r}"

    def settle(self, item: str) -> None:  # noqa: ARG002 there is only one
        """Read the Installation, bring about what it asks for, and write its status."""
        present = self._read()
        if present is None:
            self._waiting = ()
            return
        self._uid = present["metadata"]["uid"]
        with suppress(_Gone):
            self._settle(present)

    def _settle(self, present: Json) -> None:
        try:
            made = reconcile.plan(self._cluster, present.get("spec") or {})
            result = reconcile.carry_out(self._cluster, made)
        except CallerError as error:
            if error.code != Code.DATASTORE_LOCKED:
                findings = Findings((error.as_text(),), _REASONS.get(Code(error.code), "ObjectConflict"))
                reconcile.write_status(self._cluster, findings, None)
            raise
        for each in result.outcomes:
            if each.is_change:
                log.info("controller %s: %s %s is %s", self.name, each.kind, each.name, each.outcome)
        self._waiting = tuple(cidr for pool in made.pools.stale if pool.name in result.waiting and (cidr := cidr_of(pool)))
        reconcile.write_status(self._cluster, result.findings, made.wanted.computed)
        if result.findings.problems:
            raise Unsettled("; ".join(result.findings.problems))

    def _read(self) -> Json | None:
        """Return the Installation; None if it does not exist, or is being deleted."""
        found = self.shared.client.get_if_served(reconcile.path_of(self.shared.names))
        return None if found is None or found["metadata"].get("deletionTimestamp") else found

    def _require_installation(self) -> None:
        """Raise _Gone if the Installation of the round was deleted: who deletes it may write next what it determined."""
        present = self._read()
        if present is None or present["metadata"]["uid"] != self._uid:
            log.info("controller %s: %s was deleted during the round, which ends", self.name, self.shown(NAME))
            self._waiting = ()
            raise _Gone

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Enclose a write of the Kubernetes API. Raise NotLeading, or DatastoreLocked."""
        self._readiness.require()
        self._require_installation()
        with deadline.limit(self.shared.election.require()):
            yield
        self.tally.count_written(1)

    def _add(self, _: Collection[object]) -> None:
        self.add((NAME,))

    def _look_for_released(self, keys: Collection[Any]) -> None:
        """Try again when blocks of a pool change that waits for its deletion."""
        waiting = self._waiting
        if any(key.cidr.overlaps(cidr) for key in keys for cidr in waiting):
            self.add((NAME,))


def _read_installation(data: Json) -> tuple[str, Row | None]:
    metadata = data["metadata"]
    row = (metadata.get("generation"), metadata.get("deletionTimestamp"))
    return metadata["name"], row if metadata["name"] == NAME else None


def _read_workload(kind: str, names: Names, data: Json) -> tuple[str, Row | None]:
    name = data["metadata"]["name"]
    known = (names.daemon_set, names.node_agent) if kind == DAEMON_SET else (names.controllers, names.data_path_proxy)
    row = (data["metadata"].get("generation"), workloads.progress_of(data | {"kind": kind}))
    return name, row if name in known else None
