"""Protocol edge: carry out one call and return its reply, in the agent or in a one-shot process."""

import math
import time
import traceback
from contextlib import suppress

import orjson

from svc import deadline
from svc.attach.context import Context
from svc.attach.status import network_key
from svc.call_trace import CallTrace
from svc.cni import results
from svc.cni.call_io import CallInput, Reply
from svc.cni.environment import parse_environment
from svc.cni.verbs import HANDLERS, Invocation, attach
from svc.imports import is_package_changed
from svc.logs.call_log import write_lines
from svc.model import cni_versions
from svc.model.errors import CallerError, InternalError, SvcError
from svc.model.shortage import shortage
from svc.names import DEFAULT, Names
from svc.netconf import netconf as netconfs
from svc.netconf.args import pod_in
from svc.netconf.decoding import declared_version, decode, split_result
from svc.netconf.netconf import NetConf
from svc.values import replace
from svc.waits.wait import Resumable, Suspended, limited

# Limits of a call's work, from when a worker takes it; waits for readiness gates and policy are not included. They are shorter
# than the executable's limits, so that the runtime receives the cause.
WORK_SECONDS = {"ADD": 30.0 - deadline.RESERVED_SECONDS, "DEL": 20.0, "CHECK": 9.0, "GC": 80.0}

_AFTER_ADD = ("CHECK", "DEL")  # verbs whose configuration has the result of the ADD

_SVCCTL = "`" + "svcctl "  # as errors begin a command


def handle_call(context: Context, inputs: CallInput, trace: CallTrace) -> Resumable[Reply]:
    """Carry out a call and return its reply. Each failure becomes a CNI error in the reply. Yield when the call waits."""
    started = time.perf_counter()
    call = _Answer(context, inputs, trace)
    seconds = WORK_SECONDS.get(inputs.environment.get("CNI_COMMAND", ""), math.inf)
    try:
        stdout, status = (yield from limited(call.carry_out(), seconds, trace.activated)), 0
        call.record(None)
        trace.info(f"ok {call.summary}{trace.phases_text()} total={(time.perf_counter() - started) * 1000:.2f}")
    except Suspended as moved:
        trace.info("not finished here: the call goes on in another process")
        return Reply(0, b"", write_lines(trace, call.netconf), moved.generation)
    except SvcError as error:
        call.record(error)
        stdout, status = call.failed(error), 1
    except Exception as failure:
        stdout, status = call.failed(_unexpected_error(failure, trace)), 1
    finally:
        inputs.close()
    elapsed = time.perf_counter() - started + trace.phases.get("queue", 0.0) / 1000
    context.metrics.call_ended(call.verb, call.code, elapsed, trace.phases)
    return Reply(status, stdout, write_lines(trace, call.netconf))


def failed_before_start(inputs: CallInput, error: SvcError, trace: CallTrace) -> Reply:
    """Return the reply to a call that failed before it started."""
    _name_profile(error, inputs.profile)
    trace.error(f"code {int(error.code)}: {error}")
    return Reply(1, _error_reply(error, _readable_version(inputs.stdin), trace), write_lines(trace, None))


class _Answer:
    """One call in progress. It sets version and log settings as soon as they are known from the network configuration."""

    def __init__(self, context: Context, inputs: CallInput, trace: CallTrace) -> None:
        self._context = context
        self._inputs = inputs
        self._trace = trace
        self._version: str | None = None
        self.netconf: NetConf | None = None
        self.summary = ""
        self.verb = ""
        self.code = 0  # of the error, if the call failed

    def carry_out(self) -> Resumable[bytes]:
        inputs, trace = self._inputs, self._trace
        verb = inputs.environment.get("CNI_COMMAND", "")
        names = self._names(verb)
        ipam = inputs.name == names.ipam_plugin
        trace.fields["verb"] = verb if verb.isalpha() else repr(verb)  # it may contain a line break
        call = parse_environment(inputs.environment, ipam=ipam)
        self.verb = call.verb
        if call.verb == "VERSION":
            return orjson.dumps(results.render_version(_readable_version(inputs.stdin)))
        trace.fields |= {"container": call.container_id, "ifname": call.ifname} if call.container_id else {}
        if pod := pod_in(call.args):
            trace.fields["pod"] = pod
        if call.traceparent:
            trace.fields["traceparent"] = call.traceparent
        stdin, previous = split_result(inputs.stdin) if call.verb in _AFTER_ADD else (inputs.stdin, None)
        self._version = version = cni_versions.negotiate(declared_version(stdin))
        cni_versions.require(call.verb, version)
        try:
            self.netconf = netconf = netconfs.parse(stdin, names, lenient=call.verb == "DEL")
        except CallerError as error:
            found = self._readable_netconf() if call.verb == "GC" else None
            if found is None or not 0 < len(found.location_errors.found) == len(error.errors):
                raise
            self.netconf = netconf = found  # the attachments to release have rows, which know their datastore
        if previous is not None and call.verb == "CHECK":  # a DEL does not need it
            self.netconf = netconf = replace(netconf, prev_result=previous)
        self._context.tokens.store(netconf.datastore.to_json())
        trace.set_level(netconf.log_level)
        trace.fields["network"] = netconf.name
        invocation = Invocation(self._context, inputs, call, netconf, version, trace, names)
        if call.verb != "ADD":
            HANDLERS[call.verb](invocation)
            return b""
        with self._context.health.adding(network_key(netconf)):
            result = yield from attach(invocation)
        self.summary = " ".join(ip.address for ip in result.ips) + " "
        return orjson.dumps(results.render(result, version))

    def record(self, error: SvcError | None) -> None:
        """Record the outcome of an ADD for STATUS. A successful DEL of a delegated network may have freed an address."""
        if self.netconf is None:
            return
        has_freed = self.verb == "DEL" and error is None and self.netconf.ipam.is_delegated
        if self.verb == "ADD" or has_freed:
            self._context.health.record(network_key(self.netconf), error)

    def _names(self, verb: str) -> Names:
        """Return the names profile of the executable. A DEL continues without a readable one: its release stays pending."""
        try:
            return self._context.names_of(self._inputs.profile)
        except CallerError as error:
            if verb != "DEL":
                raise
            self._trace.warning(f"the names profile is not readable: {error}")
            return replace(DEFAULT, ipam_plugin=self._inputs.name) if self._inputs.name.endswith("-ipam") else DEFAULT

    def failed(self, error: SvcError) -> bytes:
        self.code = int(error.code)
        _name_profile(error, self._inputs.profile)
        self._trace.error(f"code {self.code}: {error} {self._trace.phases_text()}")
        self.netconf = self.netconf or self._readable_netconf()
        return _error_reply(error, self._version or _readable_version(self._inputs.stdin), self._trace)

    def _readable_netconf(self) -> NetConf | None:
        """Return the network configuration without validation, if possible, to find the log file for a failed call."""
        with suppress(Exception):  # the network configuration may be the cause of the failure
            names = self._context.names_of(self._inputs.profile)
            return netconfs.read(decode(self._inputs.stdin), names, lenient=True)
        return None


def _name_profile(error: SvcError, profile: str) -> None:
    """Name the names profile of the executable in the commands of svcctl that an error tells."""
    if profile:
        error.details = error.details.replace(_SVCCTL, f"{_SVCCTL}--names {profile} ")


def _error_reply(error: SvcError, version: str, trace: CallTrace) -> bytes:
    reply = results.render_error(error, version)
    reply["details"] = f"{reply.get('details', '')} [request {trace.request_id}]".lstrip()
    return orjson.dumps(reply)


def _readable_version(stdin: bytes) -> str:
    """Return the version in which errors are reported; the latest if the network configuration has no readable one."""
    try:
        return cni_versions.negotiate(declared_version(stdin))
    except SvcError:
        return cni_versions.LATEST


def _unexpected_error(failure: Exception, trace: CallTrace) -> SvcError:
    """Return the error for an exception without a specific handler: a lack of resources, a changed package, or a bug in svc."""
    if lack := shortage(failure):
        return lack
    msg = f"internal error: {type(failure).__name__}: {failure}"
    if is_package_changed():
        return InternalError(msg, details="svc was replaced or removed on disk since its agent started: restart svc-agent")
    trace.error("".join(traceback.format_exception(failure)))
    return InternalError(msg, details="this is a defect of svc: please report it with its log lines")
