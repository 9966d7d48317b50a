"""The transaction of an ADD: intent, addresses, wiring, endpoint, result. Each step registers its rollback."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from svc import deadline
from svc._core.cidr import Address
from svc.attach.addressing import require_mtu
from svc.attach.datastore_ready import DatastoreLocked, StoreReplaced
from svc.attach.endpoints import creation, delete_endpoint, endpoint_of, ensure_profile, needs_endpoint, write_endpoint
from svc.attach.intent import new_record, wired_result
from svc.attach.record import ADDED, IntentLost, Record
from svc.attach.request import AddCall, Sandbox
from svc.attach.restore import lacks_row
from svc.attach.sources.base import Addressing, AssignedAddresses, Assignment, Holdings
from svc.attach.sources.select import source_of
from svc.attach.teardown import is_another_networks, others_of_interface, record_pending_release, unwire
from svc.attach.waiting import wait_for_policy, waits_for_policy
from svc.batching import NotBegun
from svc.call_trace import Phase
from svc.dataplane.wire import HostInterfaceExists, PairTaken, interface_exists, wire
from svc.datastore.api import StoreError
from svc.ipam.requests import ExtraWrite
from svc.model.endpoint import PodFacts, host_interface
from svc.model.errors import Code, PeerError, SvcError
from svc.model.pod_endpoint import policy_facts
from svc.model.resource import Resource
from svc.model.result import Result
from svc.right_of_way import RIGHT_OF_WAY
from svc.values import replace
from svc.waits.wait import Resumable


class RowLost(Exception):
    """The ADD found an interface of its name that has no row. It has changed nothing."""


class AddTransaction:
    """One in-flight ADD. `run` calls the steps in order, and each registers its rollback.

    `intent` is the row of a call that has waited for gates or for the datastore.
    """

    result: Result  # set by `run`
    _undo_failure = ""  # of the last step of the rollback that has failed
    _spares = False  # whether an interface without a row has the name: only what is known to be new is rolled back
    _assigned = AssignedAddresses((), ())

    def __init__(self, call: AddCall, addressing: Addressing, intent: Record | None = None) -> None:
        self._call = call
        self._context, self._session, self._request, self._trace = call.context, call.session, call.request, call.trace
        self._addressing = addressing
        self._pod = addressing.pod.pod
        self._intent = intent
        self._undo = ExitStack()
        self._source = call.request.source.prepared(call.context, call.trace)
        self._record = new_record(call)
        self._record.mac = addressing.annotation_settings.mac or _random_mac()
        if call.request.sandbox:
            self._record.host_name = host_interface(call.session.names, call.request.workload, call.request.id.ifname)
        self._needs_endpoint = needs_endpoint(call.session, self._record)
        self._needs_profile = call.session.names.network_profiles and not call.request.netconf.policy
        self._extra_write = self._endpoint_along()

    def run(self) -> None:
        """Carry out all steps. Raise SvcError if one fails, RowLost if rows must be restored; the ADD is rolled back then."""
        try:
            self.record_intent()
            self.assign_addresses()
            if self._request.sandbox is not None:
                self.wire(self._request.sandbox)
                self.write_endpoint()
            self.result = self.record_result()
        except BaseException as failure:
            lacks_row = self._lacks_row()
            self._roll_back()
            if lacks_row and not self._call.restored and isinstance(failure, Exception):
                raise RowLost from failure
            raise

    def wait_for_policy(self) -> Resumable[None]:
        """Wait for the pod's policy. Raise SvcError if the container is no longer wanted; the ADD is rolled back then.

        Raise IntentLost without a rollback if the row does not exist any more, because a DEL has torn the attachment down.
        A process that is killed during the wait leaves a complete attachment, which a DEL tears down.
        """
        try:
            yield from wait_for_policy(self._call, self._record)
        except IntentLost:
            raise
        except SvcError:
            self._roll_back()
            raise
        finally:
            self._drop_rollback()

    def _roll_back(self) -> None:
        """Revert the steps, with an extended deadline because that of the call may be over."""
        with deadline.extended():
            self._undo.close()
        self._drop_rollback()

    def _drop_rollback(self) -> None:
        """Drop what refers to this object, so that it is deleted without garbage collection."""
        self._undo.pop_all()
        self._extra_write = None

    def _step(self, name: str) -> Phase:
        """Return the timed block of a step, before which short calls have right of way."""
        RIGHT_OF_WAY.give_way()
        return self._trace.phase(name)

    def record_intent(self) -> None:
        """Write the row from which recovery tears down what a killed process leaves."""
        with self._step("journal"):
            self._undo.callback(self._forget)
            self._context.journal.begin(self._record, after=self._intent)

    def assign_addresses(self) -> None:
        with self._step("ipam"):
            self._source.require_own_handle(self._context, self._session, self._record)
            self._undo.callback(self._undoing, self._release)
            try:
                self._assigned = self._source.assign(
                    Assignment(self._context, self._session, self._record, self._addressing, self._extra_write, self._trace)
                )
            except BaseException as failure:
                if _is_refusal(failure):
                    self._record.recorded_only = self._source.uses_pools  # the handle may have addresses of other interfaces
                else:
                    if self._extra_write is not None:
                        self._undo.callback(self._undoing, self._drop_endpoint)
                    self._undo.callback(self._undoing, self._session.fence)  # the write may still be in flight
                raise
            if self._assigned.has_endpoint:
                self._undo.callback(self._undoing, self._drop_endpoint)
            self._session.require_claim()  # another machine may have taken the claim over during the write
            if self._session.held_seconds() > 0:
                raise StoreReplaced
            require_mtu(self._request.mtu, self._assigned.addresses)
            self._record.addresses = [str(address) for address in self._assigned.addresses]

    def wire(self, sandbox: Sandbox) -> None:
        with self._step("kernel"):
            self._undo.callback(self._undoing, self._unwire)
            self._wire(sandbox)

    def write_endpoint(self) -> None:
        if self._assigned.has_endpoint or not self._needs_endpoint:
            return
        with self._step("endpoint"):
            if self._needs_profile:
                ensure_profile(self._session, self._request.id.network, pod=self._request.workload.is_pod)
            self._undo.callback(self._undoing, self._drop_endpoint)
            write_endpoint(self._session, self._endpoint(self._assigned.addresses))

    def record_result(self) -> Result:
        with self._step("journal"):
            result = self._result()
            self._record.state = ADDED
            self._record.result = result.to_json()
            self._record.facts = self._facts_to_record()
            if waits_for_policy(self._call, self._record):
                self._record.waits_until = time.time() + self._request.netconf.policy_setup.seconds
            self._context.require_state()
            self._context.journal.update(self._record)
        return result

    def _endpoint_along(self) -> ExtraWrite | None:
        """Return the endpoint as an extra write, or None if its policy profile must exist first or it has no endpoint."""
        if not self._needs_endpoint or self._needs_profile:
            return None
        return lambda addresses: creation(self._endpoint(addresses))

    def _wire(self, sandbox: Sandbox) -> None:
        wiring = self._record.wiring()
        for path in self._context.forwarding.ensure(wiring):
            self._trace.info(f"forwarding was off in the host: {path} is 1 now")
        try:
            wire(self._context.kernel, wiring, sandbox.fd, self._record)
            return
        except HostInterfaceExists as taken:
            if not self._call.restored and self._lacks_row():
                raise RowLost from taken
            if isinstance(taken, PairTaken):
                self._require_replaceable()
            self._context.remove_interface(self._record.host_name)
        try:
            wire(self._context.kernel, wiring, sandbox.fd, self._record)
        except HostInterfaceExists as taken:
            raise PeerError(
                f"host interface {self._record.host_name!r} keeps coming back",
                details="something else on this node creates it: see `ip monitor link`",
                code=Code.KERNEL,
            ) from taken

    def _lacks_row(self) -> bool:
        """Return whether an interface exists that this ADD would have made, and neither it nor a recorded ADD has made it."""
        if self._record.is_wired and not self._spares:
            with suppress(SvcError, OSError):
                record = self._record
                self._spares = lacks_row(self._context, record.id, record.host_name, made=record.host_index)
        return self._spares

    def _require_replaceable(self) -> None:
        """Raise CallerError if the existing interface pair of the same names is not of a previous container of the pod.

        It may belong to another network's attachment of the same container.
        """
        ifname, same = self._record.id.ifname, (self._record.id.container_id, ADDED)
        others = others_of_interface(self._context, self._record)
        if not self._record.workload.is_pod or any((other.id.container_id, other.state) == same for other in others):
            raise interface_exists(ifname) from None
        self._trace.info(f"{ifname} of an earlier container of this pod is replaced")

    def _unwire(self) -> None:
        if self._record.host_index:  # an interface that this ADD did not make may have the name
            unwire(self._context, self._record)

    def _drop_endpoint(self) -> None:
        if self._spares and not self._assigned.has_endpoint:
            return  # it may be that of the interface without a row
        if not is_another_networks(self._context, self._record):
            delete_endpoint(self._session, self._record)

    def _release(self) -> None:
        """Release the addresses, unless an earlier step of the rollback failed.

        The interface or the endpoint may then still use them. The pending release removes both first.
        """
        source = source_of(self._record)
        if self._spares and not source.uses_pools:
            return  # the plugin identifies addresses by container and interface: it would release those in use
        if source.uses_pools and (self._record.addresses or self._spares):
            self._record.recorded_only = True  # the handle may hold addresses of a live interface without a row
        if not self._undo_failure:
            source.release(Holdings(self._context, self._session, self._record, self._trace), None)

    def _undoing(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as failure:
            self._undo_failure = str(failure) or type(failure).__name__
            self._trace.error(f"undo failed, its release is pending: {failure}")

    def _forget(self) -> None:
        if self._undo_failure and not self._spares:
            self._undoing(lambda: record_pending_release(self._context, self._record, self._undo_failure))
        else:
            self._undoing(lambda: self._context.journal.remove(self._record))

    def _endpoint(self, addresses: Sequence[Address]) -> Resource:
        return endpoint_of(self._session, self._record, addresses, self._facts())

    def _facts(self) -> PodFacts:
        if self._pod:
            return replace(policy_facts(self._session.names, self._pod), floating=self._addressing.annotation_settings.floating)
        return PodFacts(dict(self._request.labels), profiles=[self._record.id.network])

    def _facts_to_record(self) -> dict[str, Any] | None:
        """Return the pod facts for rewriting the endpoint, or None if the API server has them on the pod."""
        known = (self._pod or self._request.labels) and self._session.settings["kind"] != "orch"
        return self._facts().to_json() if known else None

    def _result(self) -> Result:
        sandbox = self._request.sandbox
        if sandbox is None:
            return Result(ips=self._assigned.ips, routes=self._assigned.routes)
        return wired_result(self._record, sandbox, self._assigned.ips, self._assigned.routes, self._assigned.dns)


def _is_refusal(failure: BaseException) -> bool:
    """Return whether nothing was written. An existing endpoint is then not from this ADD."""
    return isinstance(failure, DatastoreLocked | NotBegun) or (
        isinstance(failure, SvcError) and not isinstance(failure, StoreError)
    )


def _random_mac() -> str:
    """Return a random unicast MAC that is locally administered."""
    first, *rest = os.urandom(6)
    return bytes([(first & 0xFC) | 0x02, *rest]).hex(":")
