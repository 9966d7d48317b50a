"""Service accounts, roles, and their bindings."""

from collections.abc import Iterator
from typing import Any

from svc.deploy import rbac
from svc.deploy.manifests.controllers import controllers_of
from svc.deploy.manifests.settings import Settings

Json = dict[str, Any]


def accounts(settings: Settings) -> list[Json]:
    """Return the service accounts: of the plugin, of the pods on nodes, of the controllers."""
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": settings.namespace}}
        for name in _accounts(settings)
    ]


def roles_and_bindings(settings: Settings) -> Iterator[Json]:
    """Yield each role, followed by its binding."""
    plugin, node, controllers = _accounts(settings)
    for account, roles in (
        (plugin, _of_calls(settings)),
        (node, _of_installer(settings)),
        (controllers, _of_controllers(settings)),
    ):
        subject = {"kind": "ServiceAccount", "name": account, "namespace": settings.namespace}
        for role in roles:
            yield role
            yield rbac.bound(role, subject)


def _accounts(settings: Settings) -> tuple[str, str, str]:
    names = settings.names
    return rbac.plugin_account(names), rbac.node_name(names), names.controllers


def _of_calls(settings: Settings) -> list[Json]:
    names, version, own = settings.names, settings.store_api_version, not settings.uses_pod_cidrs
    found = [rbac.plugin_role(names, version, own_ipam=own), rbac.agent_role(names, version, own_ipam=own)]
    if not settings.is_orch:
        return found  # etcd has the claims on nodes itself, and what svc-routes needs
    routes = [rbac.routes_role(names, version)] if settings.runs_routes else []
    return [*found, rbac.agent_lease_role(names), *routes]


def _of_installer(settings: Settings) -> list[Json]:
    token = rbac.installer_token_role(settings.names, settings.namespace)
    return [token, rbac.installer_role(settings.names, settings.store_api_version)] if settings.is_orch else [token]


def _of_controllers(settings: Settings) -> list[Json]:
    return rbac.controllers_roles(settings.names, controllers_of(settings), settings.store_api_version, settings.namespace)
