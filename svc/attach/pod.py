"""What an ADD learns of its pod and namespace."""

from svc.attach.context import Context
from svc.attach.request import AddRequest
from svc.attach.session import Session
from svc.orch.info import PodInfo
from svc.trace import Trace


def read_pod(context: Context, session: Session, request: AddRequest, trace: Trace) -> PodInfo:
    """What the orchestrator says, where it is to be asked. Whether the datastore is locked is asked meanwhile; right now where
    no write of an address will ask again."""
    workload, ask = request.workload, session.require_ready if request.delegation else session.expect_ready
    if not (request.orchestrator and workload.is_pod) or (request.delegation and not request.policy):
        ask()
        return PodInfo()
    pods = context.orchestrators.pods(request.orchestrator)
    found = pods.read(workload.namespace, workload.pod if request.policy else "", request.pod_uid, ask)
    if found.namespace.warning:
        trace.warning(found.namespace.warning)
    return found
