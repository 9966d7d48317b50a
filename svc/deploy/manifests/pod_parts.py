"""Parts that several pods share: accounts' tokens, volumes, variables, security settings."""

from typing import Any, Final

from svc.deploy.manifests.settings import CONFIG_MAP, Settings
from svc.names import Names

Json = dict[str, Any]

TOKEN, CERTIFICATES = "token", "etcd-certs"
CERTIFICATE_DIR: Final = "/etc/svc/etcd"
CERTIFICATE_FILES: Final = {"etcd_ca_cert_file": "etcd-ca", "etcd_cert_file": "etcd-cert", "etcd_key_file": "etcd-key"}
"""Options of a network configuration, and the keys of the Secret with their files."""

_ESCALATES: Final = "SYS_ADMIN"
_TOKEN_SECONDS: Final = 3607  # kubelet renews it after 80 % of this time


def token_volume() -> Json:
    """Return the volume with the token of the pod's account, which kubelet renews."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": TOKEN, "projected": {"sources": sources}}


def token_mount(settings: Settings) -> Json:
    """Return the mount of the token where clients look for it."""
    path = f"/var/run/secrets/{settings.names.orch_domain}/serviceaccount"
    return {"name": TOKEN, "mountPath": path, "readOnly": True}


def secret_name(settings: Settings) -> str:
    """Return the name of the Secret with the files for etcd, which the administrator makes."""
    return f"{settings.names.plugin}-etcd-secrets"


def certificate_volumes(settings: Settings, mode: int) -> list[Json]:
    """Return the volume with the files for etcd, if there are any. A pod does not start while one of the three is missing."""
    if not settings.etcd_tls:
        return []
    items = [{"key": key, "path": key} for key in CERTIFICATE_FILES.values()]
    secret = {"secretName": secret_name(settings), "defaultMode": mode, "items": items}
    return [{"name": CERTIFICATES, "secret": secret}]


def certificate_mounts(settings: Settings) -> list[Json]:
    """Return the mount of the files for etcd, if there are any."""
    return [{"name": CERTIFICATES, "mountPath": CERTIFICATE_DIR, "readOnly": True}] if settings.etcd_tls else []


def certificate_paths(settings: Settings) -> dict[str, str]:
    """Return the options of a network configuration for the files: all of them, or none."""
    return {option: f"{CERTIFICATE_DIR}/{key}" for option, key in CERTIFICATE_FILES.items()} if settings.etcd_tls else {}


def variable(name: str, value: str) -> Json:
    """Return a variable with a fixed value."""
    return {"name": name, "value": value}


def field_variable(name: str, path: str) -> Json:
    """Return a variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def api_server_source(settings: Settings) -> list[Json]:
    """Return an optional source of variables with the API server's address, for nodes that do not reach that of its service."""
    return [{"configMapRef": {"name": api_server_config_map(settings.names), "optional": True}}]


def api_server_config_map(names: Names) -> str:
    """Return the name of the ConfigMap with the API server's address, which users make."""
    return f"{names.orch_domain.partition('.')[0]}-services-endpoint"


def config_volume() -> Json:
    """Return the volume with the network list. It is required: without it the pod waits, as for the operator."""
    return {"name": CONFIG_MAP, "configMap": {"name": CONFIG_MAP}}


def security(*capabilities: str) -> Json:
    """Return the security settings of a container with these capabilities, and no others."""
    added = {"add": list(capabilities)} if capabilities else {}
    settings: Json = {"capabilities": {"drop": ["ALL"]} | added, "readOnlyRootFilesystem": True}
    if _ESCALATES not in capabilities:  # the API server refuses both together
        settings["allowPrivilegeEscalation"] = False
    return settings
