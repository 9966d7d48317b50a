"""Read the pod and the namespace of an ADD."""

from svc.attach.context import Context
from svc.attach.request import AddRequest
from svc.attach.sessions import Session
from svc.call_trace import CallTrace
from svc.orch.pod_info import PodInfo


def read_pod(context: Context, session: Session, request: AddRequest, trace: CallTrace) -> PodInfo:
    """Read pod and namespace from the Kubernetes API, if the ADD needs them, and check in parallel that the datastore is ready.

    If the ADD writes no addresses, always read the readiness, because no later write checks it.
    """
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
