"""The DaemonSet: the installer as an init container, the agent, svc-routes, and the installer again, for fresh tokens.

Each path that a network configuration may name is at the same path as on the host.
"""

from pathlib import Path
from typing import Any, Final

from svc.dataplane.sysctls import SYSCTLS
from svc.dataplane.sysctls import VARIABLE as SYSCTLS_VARIABLE
from svc.deploy import rbac
from svc.deploy.manifests.pod_parts import (
    api_server_source,
    certificate_mounts,
    certificate_volumes,
    config_volume,
    field_variable,
    security,
    token_mount,
    token_volume,
    variable,
)
from svc.deploy.manifests.settings import BIN_DIR, CONF_DIR, CONFIG_KEY, CONFIG_MAP, OPERATOR, Settings
from svc.deploy.systemd import CAPABILITIES, HOST_LOCAL_DIR
from svc.names import DEFAULT
from svc.orch.pod_cidrs import VARIABLE as USE_POD_CIDR

Json = dict[str, Any]

INSTALL, AGENT, INSTALL_WATCH, ROUTES = "install", "agent", "install-watch", "routes"
AGENT_MIB: Final = 80  # of memory, which an agent does not exceed in a burst either

_WRITABLE_SYSCTLS: Final = "/host/proc/sys"
_NAMESPACES: Final = "/run/netns"
_MACHINE_ID: Final = "/etc/machine-id"
_CONFIG_DIR: Final = "/etc/svc/config"
_WAIT_SECONDS: Final = 60  # that calls wait for the agent: the host has no Python to carry them out
_STOP_SECONDS: Final = 30  # as in the systemd unit
_TAKEOVER_SECONDS: Final = 3600  # until the rolling update ends the old pod; another agent of the node would be an error
_CERTIFICATE_MODE: Final = 0o400
_TMP: Final = "tmp"


def daemon_set(settings: Settings) -> Json:
    """Return the DaemonSet."""
    name = rbac.node_name(settings.names)
    labels = settings.labels(name)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": _rolling_update(settings)},
            "template": {"metadata": {"labels": labels}, "spec": _pod(settings, name)},
        },
    }


def _rolling_update(settings: Settings) -> Json:
    """Return one node at a time. With a surge, the new agent waits beside the old one, which a node then hardly misses."""
    return {"maxSurge": 1, "maxUnavailable": 0} if settings.surges else {"maxUnavailable": 1}


def _stop_seconds(settings: Settings) -> int:
    """Return how long a pod may take to end.

    Without a surge it is 0: the API server then forgets the old pod at once, the new pod starts while the old one ends, and the
    lock on the state directory keeps the agents apart. Otherwise the node waits until kubelet has told the end of the old pod,
    which older kubelets do every 10 s. The kubelet still gives the containers 2 s before it kills them.
    """
    return _STOP_SECONDS if settings.surges else 0


def _pod(settings: Settings, account: str) -> Json:
    containers = [_agent(settings), _install_watch(settings)]
    if settings.runs_routes:
        containers.append(_routes(settings))
    if settings.policy_agent is not None:
        containers.append(dict(settings.policy_agent))
    return {
        "hostNetwork": True,
        "hostPID": True,  # a runtime may name the namespace of a pod by a process
        "nodeSelector": {f"{settings.names.orch_domain}/os": "linux"},
        "priorityClassName": "system-node-critical",
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": _stop_seconds(settings),
        "tolerations": [{"operator": "Exists", "effect": effect} for effect in ("NoSchedule", "NoExecute")],
        "initContainers": [_install(settings)],
        "containers": containers,
        "volumes": _volumes(settings),
    }


def _install(settings: Settings) -> Json:
    return _installer(settings, INSTALL, [])


def _install_watch(settings: Settings) -> Json:
    return _installer(settings, INSTALL_WATCH, ["--watch"]) | {"resources": {"requests": {"cpu": "10m", "memory": "60Mi"}}}


def _installer(settings: Settings, name: str, more: list[str]) -> Json:
    arguments = ["--state-dir", DEFAULT.state_dir, "--run-dir", DEFAULT.run_dir, "install"]
    arguments += ["--bin-dir", BIN_DIR, "--conf-dir", CONF_DIR, "--datastore", "orch"]
    arguments += ["--netconf", f"{_CONFIG_DIR}/{CONFIG_KEY}", "--wait", str(_WAIT_SECONDS)]
    arguments += ["--names", settings.profile] if settings.profile else []
    config = {"name": CONFIG_MAP, "mountPath": _CONFIG_DIR, "readOnly": True}
    return {
        "name": name,
        "image": settings.image,
        "command": ["svcctl"],
        "args": [*arguments, *more],
        "env": [*_node_variables(settings), *_cluster_type(settings)],
        "envFrom": api_server_source(settings),
        "securityContext": security(),
        "volumeMounts": [config, token_mount(settings), *_host_mounts(settings), *certificate_mounts(settings)],
    }


def _agent(settings: Settings) -> Json:
    directories = ["--state-dir", DEFAULT.state_dir, "--run-dir", DEFAULT.run_dir]
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('{DEFAULT.run_dir}/agent.sock')"
    status = f"svcctl {' '.join(directories)} status >&2; test $? -ne 4"  # 4 means that no agent answers
    sysctls = {"name": _volume_name(SYSCTLS), "mountPath": _WRITABLE_SYSCTLS}
    return {
        "name": AGENT,
        "image": settings.image,
        "command": ["svc-agent"],
        "args": ["run", *directories, "--takeover", str(_TAKEOVER_SECONDS)],
        "env": [*_node_variables(settings), variable(SYSCTLS_VARIABLE, _WRITABLE_SYSCTLS)],
        "resources": {"requests": {"cpu": "100m", "memory": f"{AGENT_MIB}Mi"}},
        "readinessProbe": {
            "exec": {"command": ["python3", "-I", "-S", "-c", connect]},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "exec": {"command": ["sh", "-c", status]},
            "initialDelaySeconds": 30,
            "periodSeconds": 60,
            "timeoutSeconds": 10,
            "failureThreshold": 3,
        },
        "securityContext": security(*(name.removeprefix("CAP_") for name in CAPABILITIES)),
        "volumeMounts": [sysctls, *_identity_mounts(), *_host_mounts(settings), *certificate_mounts(settings)],
    }


def _routes(settings: Settings) -> Json:
    """Return the container of svc-routes, which is idle beside another program that routes."""
    arguments = ["run", "--state-dir", DEFAULT.state_dir, "--run-dir", DEFAULT.run_dir, "--mode", "auto"]
    arguments += ["--netconf", f"{CONF_DIR}/{settings.names.conflist}", "--takeover", str(_TAKEOVER_SECONDS)]
    arguments += ["--names", settings.profile] if settings.profile else []
    return {
        "name": ROUTES,
        "image": settings.image,
        "command": ["svc-routes"],
        "args": arguments,
        "env": _node_variables(settings),
        "resources": {"requests": {"cpu": "10m", "memory": "60Mi"}},
        "securityContext": security("NET_ADMIN"),
        "volumeMounts": [*_host_mounts(settings), *certificate_mounts(settings)],
    }


def _identity_mounts() -> list[Json]:
    """Return the mounts by which the agent knows its machine, and whether the namespace of a pod still exists.

    The runtime mounts a namespace when its pod starts, so mounts that come later must arrive in the container."""
    namespaces = {"name": _volume_name(_NAMESPACES), "mountPath": _NAMESPACES, "mountPropagation": "HostToContainer"}
    return [namespaces, {"name": _volume_name(_MACHINE_ID), "mountPath": _MACHINE_ID, "readOnly": True}]


def _node_variables(settings: Settings) -> list[Json]:
    found = [field_variable("KUBERNETES_NODE_NAME", "spec.nodeName")]
    return [*found, variable(USE_POD_CIDR, "true")] if settings.uses_pod_cidrs else found


def _cluster_type(settings: Settings) -> list[Json]:
    """Return the variable with the words for ClusterInformation, which the operator sets itself."""
    return [] if settings.flavour == OPERATOR else [variable("CLUSTER_TYPE", settings.cluster_type)]


def host_directories(settings: Settings) -> list[str]:
    """Return the directories of the host that a network configuration, or a record, may name."""
    names = settings.names
    logs = str(Path(names.log_dir).parent)
    own = [DEFAULT.state_dir, DEFAULT.run_dir, names.state_dir, names.run_dir]
    return list(dict.fromkeys([BIN_DIR, CONF_DIR, *own, logs, str(HOST_LOCAL_DIR)]))


def _host_mounts(settings: Settings) -> list[Json]:
    temporary = {"name": _TMP, "mountPath": "/tmp"}  # noqa: S108  # a volume of the pod
    return [temporary, *({"name": _volume_name(path), "mountPath": path} for path in host_directories(settings))]


def _volumes(settings: Settings) -> list[Json]:
    folders = [(path, "DirectoryOrCreate") for path in host_directories(settings)]
    return [
        *({"name": _volume_name(path), "hostPath": {"path": path, "type": kind}} for path, kind in folders),
        {"name": _volume_name(SYSCTLS), "hostPath": {"path": SYSCTLS, "type": "Directory"}},
        {"name": _volume_name(_NAMESPACES), "hostPath": {"path": _NAMESPACES, "type": "DirectoryOrCreate"}},
        {"name": _volume_name(_MACHINE_ID), "hostPath": {"path": _MACHINE_ID, "type": "FileOrCreate"}},
        config_volume(),
        token_volume(),
        {"name": _TMP, "emptyDir": {}},
        *certificate_volumes(settings, _CERTIFICATE_MODE),
    ]


def _volume_name(path: str) -> str:
    return path.strip("/").replace("/", "-").replace(".", "-")
