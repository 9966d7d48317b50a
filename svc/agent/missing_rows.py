"""Restore missing rows of the journal, at the start of the agent and after the journal has lost rows."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from svc import deadline
from svc._core.cidr import Address
from svc.agent.lanes import Lane
from svc.agent.queue import Job
from svc.attach.context import Context
from svc.attach.record import SessionKey
from svc.attach.restore import Origin, restore_rows, unknown_links
from svc.call_trace import CallTrace, new_request_id
from svc.cni.verbs import delegated_source, session_key
from svc.model.errors import SvcError
from svc.netconf import host_local
from svc.netconf.installed import InstalledNetwork, read_networks

JOB_SECONDS = 20.0  # limit for one datastore

log = logging.getLogger("svc.agent")


class MissingRows:
    """Restoration of rows for the networks that `svcctl install` recorded. `put` queues a job for the agent's workers."""

    def __init__(self, context: Context, put: Callable[[Job], None], state_dir: Path) -> None:
        self._context = context
        self._put = put
        self._state_dir = state_dir
        self._done: dict[SessionKey, int] = {}  # the journal's number of losses at that time
        self._in_flight: set[SessionKey] = set()
        self._looked_after = -1
        self._said: dict[SessionKey | None, Collection[str]] = {}  # messages of the last attempt, which are not repeated
        self._unknown_before: set[int] = set()  # indexes of interfaces without a row at the last look

    def look(self) -> None:
        """Queue one job for each datastore and node whose rows may be missing."""
        if self._looked_after == self._context.journal.losses:
            if not self._find_unnoticed():
                return
            self._context.journal.note_loss()
        losses = self._context.journal.losses
        stores = self._stores()
        for key, networks in stores.items():
            if key not in self._in_flight and self._done.get(key) != losses:
                self._in_flight.add(key)
                self._put(Job(Lane("restore"), "", partial(self._restore, key, networks, losses)))
        if all(self._done.get(key) == losses for key in stores):
            self._looked_after = losses

    def _find_unnoticed(self) -> bool:
        """Return whether interfaces have lost their rows since the last call, as after a change of the journal by hand."""
        unknown = self._unknown()
        if new := unknown - self._unknown_before:
            new &= self._unknown()  # a DEL may have removed an interface between the two reads
        self._unknown_before = unknown
        return bool(new)

    def _unknown(self) -> set[int]:
        with suppress(SvcError):
            names = {network.names for network in read_networks(self._state_dir)[0]}
            return {link["index"] for each in names for link in unknown_links(self._context, each).values()}
        return set()

    def _stores(self) -> dict[SessionKey, list[InstalledNetwork]]:
        found: dict[SessionKey, list[InstalledNetwork]] = defaultdict(list)
        try:
            networks, _ = read_networks(self._state_dir)
        except SvcError:  # `preload` has logged it
            return found
        messages = []
        for network in networks:
            try:
                found[session_key(network.netconf, network.names, network.profile)].append(network)
            except SvcError as failure:
                messages.append((logging.WARNING, f"network {network.netconf.name!r}: its rows are not looked for: {failure}"))
        self._report(None, messages)
        return found

    def _restore(self, key: SessionKey, networks: list[InstalledNetwork], losses: int, _job: Job) -> None:
        trace = CallTrace(new_request_id())
        try:
            with trace.activated(), deadline.limit(JOB_SECONDS):
                complete = not unknown_links(self._context, networks[0].names)  # then the datastore need not be opened
                if not complete:
                    session = self._context.session(key)
                    restore_rows(self._context, session, key, trace, partial(_locate, networks))
                    complete = session.rows.restored_after == losses
                if complete:
                    self._done[key] = losses
        except SvcError as failure:
            trace.warning(f"rows of the journal cannot be restored now: {failure}")
        finally:
            self._in_flight.discard(key)
        with trace.activated():
            self._report(key, [(level, text.partition(" ")[2]) for level, text in trace.messages])

    def _report(self, key: SessionKey | None, messages: Sequence[tuple[int, str]]) -> None:
        before, self._said[key] = self._said.get(key, ()), [text for _, text in messages]
        for level, text in messages:
            if text not in before:
                log.log(level, "%s", text)


def _locate(networks: Sequence[InstalledNetwork], container: str, ifname: str, addresses: list[Address]) -> Origin | None:
    """Find the network of an interface by host-local's files, else the only one that lets annotations bypass IPAM."""
    for network in networks:
        ipam, name = network.netconf.ipam, network.netconf.name
        if ipam.is_delegated and any(host_local.holder(name, ipam.data_dir, each) == (container, ifname) for each in addresses):
            return Origin(name, delegated_source(network.netconf, {"CNI_PATH": network.bin_dir}))
    bypassed = [network for network in networks if network.netconf.features.ip_addrs_no_ipam]
    return Origin(bypassed[0].netconf.name) if len(bypassed) == 1 else None
