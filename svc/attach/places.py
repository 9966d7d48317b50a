"""The location of a server in the network configuration, for errors before its client exists."""

from collections.abc import Mapping

from svc.model.field_errors import without_secrets_in_urls

_FIELDS = ("etcd_endpoints", "etcd_discovery_srv", "etcd_authority", "orch_api_root", "kubeconfig")


def datastore_place(settings: Mapping[str, str]) -> str:
    """Return the kind of the datastore and its location."""
    return f"datastore {settings['kind']}{_location(settings)}"


def orchestrator_place(settings: Mapping[str, str]) -> str:
    """Return the name of the Kubernetes API and its location."""
    return f"the Kubernetes API{_location(settings)}"


def _location(settings: Mapping[str, str]) -> str:
    found = next((settings[field] for field in _FIELDS if settings.get(field)), "")
    return f" ({without_secrets_in_urls(found)})" if found else ""
