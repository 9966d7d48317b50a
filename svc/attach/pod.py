"""Read what an ADD must know of its pod and namespace."""

from svc.attach.context import Context
from svc.attach.request import AddRequest
from svc.attach.sessions import Session
from svc.call_trace import CallTrace
from svc.orch.pod_info import PodInfo


def read_pod(context: Context, session: Session, request: AddRequest, trace: CallTrace) -> PodInfo:
    """Return what the orchestrator says, if it must be asked. At the same time, ask whether the datastore is locked, and
    wait for that answer where no later write of an address asks it again."""
    workload, uses_pools = request.workload, request.source.uses_pools
    ask = session.expect_ready if uses_pools else session.require_ready
    if not (request.orchestrator and workload.is_pod and (request.policy or uses_pools)):
        ask()
        return PodInfo()
    pods = context.orchestrators.pods(request.orchestrator)
    found = pods.read(workload.namespace, workload.pod if request.policy else "", request.pod_uid, ask)
    if found.namespace.warning:
        trace.warning(found.namespace.warning)
    return found
