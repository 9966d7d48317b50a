"""The part of controller `node` that keeps automatic host endpoints. `host_endpoints.py` says what they are."""

import logging
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final

from svc.controllers.conditions import TRUE, Condition
from svc.controllers.configuration import Configuration
from svc.controllers.controller import Controller, Shared, Unsettled
from svc.controllers.node.host_endpoint_names import HostEndpointNames
from svc.controllers.node.host_endpoints import Translation, Wanted, differs
from svc.controllers.settings import NODE
from svc.datastore.api import Conflict, Create, Delete, Entry, UndecodableEntry, Update
from svc.ipam.errors import shortened
from svc.model.controllers_configuration import KEY as CONFIGURATION
from svc.model.host_endpoint import KIND, endpoint_name
from svc.model.keys import ResourceKey
from svc.model.resource import Resource, new_uid, ordered, set_identity
from svc.values import replace

CLASH: Final = "HostEndpointClash"
INVALID: Final = "HostEndpointTemplateInvalid"

_NODE: Final = "Node"
_DONE: Final = {Create: "created", Update: "updated", Delete: "deleted"}

log = logging.getLogger("svc.controllers")


class HostEndpoints(Controller[str]):
    """Creates, corrects and deletes host endpoints. The items are their names.

    It changes only those with its label. Each change is a compare-and-swap after its node was read again. Before a deletion,
    the configuration is read again as well: if another program switches host endpoints on, and changes one afterwards, that
    one is not deleted by the configuration of before.
    """

    name = NODE

    def __init__(self, shared: Shared) -> None:
        self._store = shared.store
        self._nodes, self._stored = shared.tables.nodes, shared.tables.host_endpoints
        self._planning = threading.Lock()  # guards the translation, and what follows from it
        self._translation = Translation(shared.names, shared.live.now)
        self._names = HostEndpointNames(lambda node: endpoint_name([node]))
        self._taken: set[str] = set()  # wanted names of host endpoints without the label
        super().__init__(shared, (self._nodes, self._stored))
        for kind in (CLASH, INVALID):
            shared.conditions.await_judgement(kind)
        self._nodes.on_change(self._note_nodes)
        self._stored.on_change(self._note_endpoints)
        shared.live.on_change(self._configure)

    def round_items(self) -> Iterable[str]:
        differing = self._differing(self._plan(Translation(self.shared.names, self.shared.live.now)))
        self._report()
        return differing

    def settle(self, item: str) -> None:
        """Read the host endpoint and its node, and write the difference. One without the label stays."""
        key = ResourceKey(KIND, item)
        if self._stored.get(key) is None:
            with suppress(Conflict):  # it was created since
                self._correct(key, None)
                return
        self._correct(key, self._store.find(key))

    def _correct(self, key: ResourceKey, entry: Entry[Any] | None) -> None:
        if entry is not None and not self._translation.owns(entry.value):
            return
        translation = self._translation
        wanted = _wanted(translation, key.name, self._node(self._names.node(key.name)))
        if entry is not None and wanted is None:  # the tables may be late: ask the node that the host endpoint names
            wanted = _wanted(translation, key.name, self._node(entry.value.spec.get("node")))
        write = _write(key, entry, wanted)
        if isinstance(write, Delete) and not self._is_current(translation.configuration):
            raise Unsettled("the configuration has changed since")
        if write is not None:
            self._store.write([write], durable=True)
            log.info("controller %s: %s %s", self.name, _DONE[type(write)], self.shown(key.name))

    def shown(self, item: str) -> str:
        return f"host endpoint {item}"

    def _node(self, name: Any) -> Entry[Any] | None:
        """Return a node as it is now."""
        return self._store.find(ResourceKey(_NODE, name)) if name and isinstance(name, str) else None

    def _is_current(self, configuration: Configuration) -> bool:
        """Return whether the datastore still has a configuration. Without a readable one there, the last one stays in force."""
        now, spec = self.shared.live.state
        try:
            stored = self._store.find(CONFIGURATION)
        except UndecodableEntry:
            stored = None
        return configuration == now and (spec is None or stored is None or stored.value.spec == spec)

    def _configure(self, configuration: Configuration) -> None:
        self._compare(self._plan(Translation(self.shared.names, configuration)))
        self._report()

    def _plan(self, translation: Translation) -> set[str]:
        """Translate all nodes. Return the names of host endpoints that are stored, are wanted, or were wanted before."""
        with self._planning:
            nodes, names = self._nodes.snapshot(), self._names.all()
            self._translation = translation
            self._names.keep(key.name for key in nodes)
            for key, entry in nodes.items():
                self._names.note(key.name, translation.endpoints_of(entry.value).keys())
            return names | self._names.all() | {key.name for key in self._stored.snapshot()}

    def _note_nodes(self, keys: Collection[Any]) -> None:
        names: set[str] = set()
        with self._planning:
            for key in keys:
                entry = self._nodes.get(key)
                wanted = () if entry is None else self._translation.endpoints_of(entry.value).keys()
                names |= self._names.note(key.name, wanted)
        self._compare(names)
        self._report()

    def _note_endpoints(self, keys: Collection[Any]) -> None:
        self._compare({key.name for key in keys})
        self._report()

    def _compare(self, names: Collection[str]) -> None:
        if self.is_ready:
            self.add(self._differing(names))

    def _differing(self, names: Collection[str]) -> list[str]:
        """Return the names whose host endpoints differ as far as the tables show, and note those without the label."""
        differing, taken = [], set()
        for name in names:
            entry = self._stored.get(ResourceKey(KIND, name))
            wanted = _wanted(self._translation, name, self._nodes.get(ResourceKey(_NODE, self._names.node(name))))
            if entry is not None and not self._translation.owns(entry.value):
                taken |= set() if wanted is None else {name}
            elif (entry is None) != (wanted is None) or (entry and wanted and differs(entry.value, wanted)):
                differing.append(name)
        with self._planning:
            self._taken = self._taken.difference(names) | taken
        return differing

    def _report(self) -> None:
        """Report what keeps host endpoints from being as the configuration wants them, and that nothing does any more."""
        if not self.is_ready:
            return
        conditions, clashes = self.shared.conditions, [*self._clashes()]
        if clashes:
            conditions.set(Condition(CLASH, TRUE, "NameTaken", "; ".join(shortened(clashes))))
        else:
            conditions.clear(CLASH)
        if errors := self._translation.errors:
            conditions.set(Condition(INVALID, TRUE, "InvalidTemplate", "; ".join(shortened(errors))))
        else:
            conditions.clear(INVALID)

    def _clashes(self) -> Iterable[str]:
        for name in sorted(self._taken):
            yield f"host endpoint {name} stays as it is, because it lacks the label of the controllers: delete or rename it"
        for name, nodes in sorted(self._names.shared().items()):
            first, *others = nodes
            yield f"host endpoint {name} is that of node {first}, and {', '.join(others)} have none: rename the template"


def _wanted(translation: Translation, name: str, node: Entry[Any] | None) -> Wanted | None:
    return None if node is None else translation.endpoints_of(node.value).get(name)


def _write(key: ResourceKey, entry: Entry[Any] | None, wanted: Wanted | None) -> Create | Update | Delete | None:
    """Return the write that makes a host endpoint what it should be; None if it is."""
    if wanted is None:
        return None if entry is None else Delete(key, entry.revision)
    metadata = {"labels": dict(wanted.labels), "annotations": dict(wanted.annotations)}
    if entry is None:
        made = Resource(KIND, ordered({"name": key.name} | metadata), wanted.spec)
        set_identity(made, datetime.now(timezone.utc), new_uid())
        return Create(key, made)
    if not differs(entry.value, wanted):
        return None
    return Update(
        key, replace(entry.value, metadata=ordered(entry.value.metadata | metadata), spec=wanted.spec), entry.revision
    )
