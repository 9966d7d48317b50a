"""The part that keeps KubeControllersConfiguration `default`: every process follows it, and the leader writes it.

The thread of the table puts changes into force. The thread of the controller creates the object if it is missing, and writes
to its status what is in force in this process.
"""

import logging
import time
from collections.abc import Collection, Iterable
from datetime import datetime, timezone
from threading import Lock
from typing import Any

from svc.admin import resources
from svc.admin.resources import CLUSTER
from svc.controllers.condition_documents import documents
from svc.controllers.conditions import FALSE, TRUE, Condition
from svc.controllers.configuration_merge import Decision, configuration_of, decide, running_config
from svc.controllers.controller import Controller, Shared
from svc.controllers.settings import OPERATOR, Settings
from svc.datastore.api import Conflict, Contended, Create, Entry, NotFound, UndecodableEntry, Update
from svc.model import controllers_configuration as shape
from svc.model.controllers_configuration import KEY, KIND
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, new_uid, set_identity
from svc.retry import attempts
from svc.values import replace

Json = dict[str, Any]

VALID = "ConfigurationValid"  # the kind of the condition

_NAME = f"{KIND} {KEY.name!r}"

log = logging.getLogger("svc.controllers")


class ConfigurationResource(Controller[ResourceKey]):
    """The part that follows and writes the object."""

    name = "configuration"

    def __init__(self, shared: Shared, settings: Settings) -> None:
        self._settings = settings
        self._table = shared.tables.configurations
        self._decision: Decision | None = None
        self._applying = Lock()  # guards what follows
        self._seen: Json | None = None  # the spec that was decided upon last; None also if the object could not be decoded
        self._published: tuple[object, ...] = ()  # what the last write has stored, and its revision
        super().__init__(shared, (self._table,))
        self._table.on_change(self._follow)
        shared.conditions.on_change(lambda: self.add((KEY,)))

    @property
    def is_ready(self) -> bool:
        """Whether the table shows the object. This part makes the configuration known."""
        return self._table.is_filled

    def round_items(self) -> Iterable[ResourceKey]:
        return (KEY,)

    def settle(self, item: ResourceKey) -> None:
        """Create the object if it is missing, and write its status if that does not show what is in force."""
        self._initialise()
        for _ in attempts():
            try:
                return self._write(self._find(item))
            except (Conflict, NotFound):  # another writer was faster
                continue
        raise Contended(item)

    def shown(self, item: ResourceKey) -> str:
        return f"{item.kind} {item.name!r}"

    def _initialise(self) -> None:
        """Initialise a new datastore for the controller `operator`. The pods on nodes, which do it otherwise, wait for that."""
        store, names = self.shared.store, self.shared.names
        if OPERATOR in self._settings.controllers and not names.foreign_definitions and store.find(CLUSTER) is None:
            resources.initialise(store, names, [names.orchestrator], "", datetime.now(timezone.utc))
            log.info("%s is initialised", store.place)

    def _follow(self, keys: Collection[ResourceKey]) -> None:
        """Put the object into force. A deleted object, or one that cannot be decoded, changes nothing: see `settle`."""
        if KEY not in keys:
            return
        self._apply()
        self.add((KEY,))

    def _apply(self) -> None:
        """Put the object that the table has into force, if there is one, and it was not yet."""
        with self._applying:
            entry = self._table.get(KEY)
            if entry is not None and entry.value.spec != self._seen:
                self._seen = entry.value.spec
                self._decide(entry.value)

    def _decide(self, resource: Resource) -> None:
        last, has_copies = self._decision.spec if self._decision else None, self._settings.has_copies
        decision = decide(resource, last, self._settings.overrides, has_copies=has_copies)
        self._decision = decision
        self._report(decision)
        self.shared.live.replace(configuration_of(decision.settings, has_copies=has_copies), resource.spec)

    def _report(self, decision: Decision) -> None:
        lines = [error.line for error in decision.errors]
        for line in lines:
            log.error("%s: %s; the last valid values stay in force", _NAME, line)
        if not lines and (missing := shape.missing_sections(decision.spec)):
            log.warning("%s has no %s: the defaults apply, and nothing is disabled", _NAME, ", ".join(missing))
        self._set(lines, "InvalidValue")

    def _set(self, problems: Collection[str], reason: str) -> None:
        message = f"The last valid values stay in force. {'; '.join(problems)}" if problems else "Every value is valid."
        status = (FALSE, reason) if problems else (TRUE, "Valid")
        self.shared.conditions.set(Condition(VALID, *status, message))

    def _find(self, key: ResourceKey) -> Entry[Resource] | None:
        try:
            found = self.shared.store.find(key)
        except UndecodableEntry as error:
            with self._applying:
                self._seen = None  # so that the corrected object is judged, also if it equals the last valid one
                self._set((error.as_text(),), "Undecodable")
            raise
        self._apply()  # in case the table had the corrected object before the error was reported
        return found

    def _write(self, entry: Entry[Resource] | None) -> None:
        if entry is None:
            made = Resource(KIND, {"name": KEY.name}, shape.defaults())
            set_identity(made, datetime.now(timezone.utc), new_uid())
            self.shared.store.write([Create(KEY, made)], durable=True)
            log.info("%s is created with all defaults", _NAME)
        elif self._decision is not None:
            self._publish(entry, self._decision)

    def _publish(self, entry: Entry[Resource], decision: Decision) -> None:
        """Write the status. A server may drop fields that its schema lacks; so what was written is remembered."""
        settings, before = self._settings, entry.value.status or {}
        conditions, awaited = reported = self.shared.conditions.with_awaited()
        status = before | {
            "environmentVars": dict(settings.overrides.variables),
            "runningConfig": running_config(decision.settings, settings.controllers, has_copies=settings.has_copies),
            "conditions": documents(conditions, before.get("conditions"), time.time(), awaited),
        }
        if status == before or self._published == (entry.revision, status["runningConfig"], reported):
            return
        (stored,) = self.shared.store.write([Update(KEY, replace(entry.value, status=status), entry.revision)], durable=True)
        assert stored is not None
        self._published = stored.revision, status["runningConfig"], reported
