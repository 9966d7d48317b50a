"""The Deployment of svc-controllers, and its budget of disruptions."""

from typing import Any, Final

from svc.deploy.manifests.pod_parts import (
    api_server_source,
    certificate_mounts,
    certificate_paths,
    certificate_volumes,
    security,
    token_mount,
    token_volume,
    variable,
)
from svc.deploy.manifests.settings import OPERATOR, SYSTEM_NAMESPACE, Settings
from svc.orch.pod_cidrs import VARIABLE as USE_POD_CIDR

Json = dict[str, Any]

CONTAINER: Final = "controllers"
_USER: Final = 10001  # any but root: the program writes nothing but a temporary file
_WITH_ETCD: Final = ("policy", "namespace", "serviceaccount", "workloadendpoint", "node", "loadbalancer")
_WITH_ORCH: Final = ("node", "loadbalancer")  # the others are idle, because policy agents read Kubernetes itself
_CERTIFICATE_MODE: Final = 0o440  # for the group of the user
_TMP: Final = "tmp"
# Named, because the program refuses to make its own directory in a folder such as this volume: all users may write it, and it
# is not sticky. The pod has one user.
_HEALTH_FILE: Final = "/tmp/health.json"  # noqa: S108  # in a volume of the pod


def controllers_of(settings: Settings) -> tuple[str, ...]:
    """Return the controllers that are enabled."""
    found = _WITH_ORCH if settings.is_orch else _WITH_ETCD
    return (*found, "operator") if settings.flavour == OPERATOR else found


def deployment(settings: Settings) -> Json:
    """Return the Deployment."""
    name = settings.names.controllers
    labels = settings.labels(name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": _pod(settings, name)},
        },
    }


def disruption_budget(settings: Settings) -> Json:
    """Return the PodDisruptionBudget, in the API group that the server has."""
    name = settings.names.controllers
    return {
        "apiVersion": settings.policy_api,
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": settings.labels(name)},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": settings.labels(name)}},
    }


def _pod(settings: Settings, account: str) -> Json:
    domain = settings.names.orch_domain
    roles = [f"node-role.{domain}/master", f"node-role.{domain}/control-plane", f"node.{domain}/not-ready"]
    user = {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}
    return {
        # etcd may be reached from nodes only, and the operator runs before pods have a network
        **({"hostNetwork": True} if not settings.is_orch or settings.flavour == OPERATOR else {}),
        "nodeSelector": {f"{domain}/os": "linux"},
        "priorityClassName": "system-cluster-critical",
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "securityContext": user | {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
            *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in roles),
        ],
        "containers": [_container(settings)],
        "volumes": [token_volume(), {"name": _TMP, "emptyDir": {}}, *certificate_volumes(settings, _CERTIFICATE_MODE)],
    }


def _container(settings: Settings) -> Json:
    names = ["--names", settings.profile] if settings.profile else []
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["svc-controllers"],
        "args": ["run", *names],
        "env": [variable(name, value) for name, value in environment(settings).items()],
        "envFrom": api_server_source(settings),
        "resources": {"requests": {"cpu": "50m", "memory": "80Mi"}},
        "readinessProbe": _probe("--ready", names, periodSeconds=10, timeoutSeconds=10),
        "livenessProbe": _probe(
            "--live", names, initialDelaySeconds=15, periodSeconds=30, timeoutSeconds=10, failureThreshold=4
        ),
        "securityContext": security(),
        "volumeMounts": [
            token_mount(settings),
            {"name": _TMP, "mountPath": "/tmp"},  # noqa: S108  # a volume of the pod
            *certificate_mounts(settings),
        ],
    }


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables of the program."""
    found = {"ENABLED_CONTROLLERS": ",".join(controllers_of(settings)), "HEALTH_FILE": _HEALTH_FILE}
    if settings.is_orch:
        found["DATASTORE_TYPE"] = settings.names.orch_datastore
    else:
        found |= {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": settings.etcd_endpoints}
        found |= {option.upper(): path for option, path in certificate_paths(settings).items()}
    if settings.flavour == OPERATOR and settings.namespace != SYSTEM_NAMESPACE:
        found["OPERATOR_NAMESPACE"] = settings.namespace
    return found | ({USE_POD_CIDR: "true"} if settings.uses_pod_cidrs else {})


def _probe(aspect: str, names: list[str], **times: int) -> Json:
    return {"exec": {"command": ["svc-controllers", "health", aspect, *names]}, **times}
